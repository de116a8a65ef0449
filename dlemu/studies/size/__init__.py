"""How many accelerators a storage feeds: trials are training runs. Formulas and tests: docs/sizing.md."""
