"""Training jobs: a real loader feeds an emulated accelerator per rank; the result is how busy they were kept.

`kind` registers the job, `result` plans and reads it, `trainer` runs one rank, `loop` steps its accelerator, `analyse`
computes the summary, and `wording` presents it. Imports no other kind of job, nor studies, the command line or mlperf.
"""
