"""How many accelerators a storage feeds: search, sweep, compare. Formulas and tests: docs/sizing.md."""
