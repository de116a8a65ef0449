"""Training jobs: on each rank a real loader feeds an emulated accelerator; the result is how busy these were kept.

`kind` registers the job, `result` plans and reads it, `trainer` runs one rank, `loop` steps its accelerator, `analyse`
computes the summary, `wording` presents it. Imports no other kind of job, no studies, command line or mlperf.
"""
