"""Training: batches through a real loader, an emulated accelerator per rank, and how busy the storage kept them.

`kind` declares it; `loop` is the accelerator's timeline, `trainer` a rank's run, `analyse` computes, `wording` and
`page` show. Imports no other kind of job, nor studies, the command line or mlperf.
"""
