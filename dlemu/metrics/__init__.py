"""Pure functions from step rows (one per rank and step) to numbers and finding codes; docs/metrics.md has the formulas.

`au` computes accelerator utilisation (AU), `loss` and `limit` find what keeps it low, `verdict` compares it with the
threshold; `catalogue` describes metrics (name, unit, title). No texts, no files. May import plan, config, datagen.
"""
