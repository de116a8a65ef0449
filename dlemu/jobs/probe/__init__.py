"""`dlemu probe`: what a storage can deliver (MB/s, IOPS, latency), as fio would measure it, without any training.

A cell is one measurement: a combination of access pattern, request size, depth (requests in flight per job) and jobs.
`run` measures them by the engines in `requests` (fio or dlemu's own); `result` is probe.json, `page` shows it. Imports
no other kind of job, nor studies, the command line or mlperf.
"""
