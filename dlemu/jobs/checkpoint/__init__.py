"""The checkpoint job (`dlemu checkpoint`): all ranks write and read a model's checkpoints and time them.

`kind` registers the job, `run` implements it, `plan` checks it, `loop` measures, `analyse` computes, `wording` reports.
"""
