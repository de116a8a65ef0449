"""Pure functions from step rows to numbers. Symbols and formulas are in docs/metrics.md."""
