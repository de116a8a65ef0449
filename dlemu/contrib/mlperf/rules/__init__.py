"""The rules of each edition of MLPerf Storage, as data and as pure functions from facts about a run to findings.

`training` judges training runs, `checkpoints` has the official models, `editions` what differs by edition, `known` the
rules that dlemu checks, `official` those of v3.0's text. Reads no results; may import settings and checkpoint plans.
"""
