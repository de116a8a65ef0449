"""A real training job, recorded: what each step waited for, and the workload that emulates it.

The hook `recorder` writes rows of measurements in the job; `rows` reads and `recording` analyses them, `recipe` writes
the workload, `self_check` replays it. The hook imports nothing of dlemu.
"""
