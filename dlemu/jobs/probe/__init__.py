"""`dlemu probe`: what a storage can deliver (MB/s, IOPS, latency), as fio would measure it, without any training.

A cell is one measurement: access pattern, request size, depth (requests in flight per job) and jobs. Imports no other
kind of job, nor studies, the command line or mlperf.
"""
