"""What each edition of MLPerf Storage fixes, as data and pure functions from facts to findings.

`training` and `checkpoints` judge facts, `editions` has what changes from edition to edition, `known` lists the rules
that are checked and `official` those of the texts. Reads no results; may import settings and checkpoint plans.
"""
