"""How many accelerators a storage feeds: the search. Formulas and tests: docs/sizing.md.

`find_size` leads from the question to size.json, `search` says which count comes next, `trials` run it, `size_verdict`
concludes and `wording` says it. May import training, whose runs the trials are.
"""
