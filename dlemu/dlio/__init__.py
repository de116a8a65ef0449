"""Compatibility with DLIO: its command line, its workload files, and its result files for runs measured by dlemu.

Nothing here knows MLPerf's rules or names a kind of job: each kind declares how its runs are exported
(`dlemu.results.exported`). May import the runner's events, results, checkpoints, metrics and settings; used by mlperf,
the command line and the Python API.
"""
