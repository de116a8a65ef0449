"""The checkpoint job (`dlemu checkpoint`): all ranks write and read a model's checkpoints and time them.

`kind` declares the job, `run` plans it, `loop` writes and reads, `analyse` computes the results, `wording` shows them.
"""
