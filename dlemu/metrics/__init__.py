"""Pure functions from step rows to numbers and codes. Symbols and formulas are in docs/metrics.md.

`au` computes the AU, `causes` and `limit` find what kept it down, `verdict` judges it; `catalogue` declares what a
metric is (name, unit, title). Makes no sentences, touches no files. May import plan, settings and datagen.
"""
