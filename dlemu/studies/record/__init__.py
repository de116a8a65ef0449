"""A real training job, recorded: what each step waited for, and the workload that emulates it.

The hook `dlemu.record` writes rows of measurements in the job; `rows` reads and `recording` analyses them, `recipe`
writes the workload, `self_check` replays it. May import jobs and below; `dlemu.record` imports nothing from here.
"""
