"""How many accelerators a storage feeds: the search. Formulas and tests: docs/sizing.md."""
