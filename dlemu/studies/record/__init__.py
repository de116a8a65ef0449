"""A real training job, recorded: what each step waited for, and the workload that emulates it.

`dlemu.record` notes it in the job; `rows` reads that, `recording` analyses, `recipe` writes the workload, `self_check`
replays it. May import jobs and what is below; `dlemu.record` imports nothing of it.
"""
