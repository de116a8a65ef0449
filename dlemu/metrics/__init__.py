"""Pure functions from step rows to numbers and codes. Symbols and formulas are in docs/metrics.md.

`au` computes the AU, `causes` and `limit` what kept it down, `verdict` how a verdict falls; `catalogue` is what a
metric declares of itself. Makes no sentences, touches no files. May import plan, settings and datagen.
"""
