"""The rules of each edition of MLPerf Storage, as data; `check` applies them.

`training` has the size of datasets, `checkpoints` the official models, `editions` what differs by edition, `known` the
rules that dlemu checks, `official` those of v3.0's text. Reads no results; may import settings and checkpoint plans.
"""
