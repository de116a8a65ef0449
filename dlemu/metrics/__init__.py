"""Pure functions from step rows (one per rank and step) to numbers and finding codes; formulas: docs/metrics.md.

`au` computes accelerator utilisation (AU), `loss` and `limit` find what kept it low, `verdict` compares it with the
threshold; `catalogue` describes metrics (name, unit, title). No messages, no files. May import plan, settings, datagen.
"""
