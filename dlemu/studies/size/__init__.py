"""How many accelerators a storage feeds, found by trials, which are training runs. Formulas: docs/sizing.md."""
