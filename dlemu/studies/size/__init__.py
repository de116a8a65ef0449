"""How many accelerators a storage feeds: the search. Formulas and tests: docs/sizing.md.

`find_size` does everything from the question to size.json, `search` chooses the next count, `trials` runs it,
`size_verdict` computes the answer and writes it out. May import training, as trials are training runs.
"""
