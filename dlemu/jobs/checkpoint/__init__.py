"""The checkpoint job (`dlemu checkpoint`): all ranks write and read a model's checkpoints and time them.

`kind` declares the job, `loop` writes and reads, `analyse` computes the results, `wording` shows them. Code
shared with training is in `dlemu.checkpoints`. Imports no other kind of job, nor studies, the command line or mlperf.
"""
