"""Checkpoints: a model's files written, read and timed by all ranks.

`kind` declares it; `loop` writes and reads, `analyse` computes, `wording` and `page` show. What training's checkpoints
need too is `dlemu.checkpoints`. Imports no other kind of job, nor studies, the command line or mlperf.
"""
