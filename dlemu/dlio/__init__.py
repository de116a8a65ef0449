"""DLIO's dialect: its command line, its workload files, and its result files of runs that dlemu measured.

Nothing here knows MLPerf's rules or a kind of job by name: a kind says how its runs are exported
(`dlemu.results.exported`). May import the runner's events, results, checkpoints, metrics and settings; used by mlperf,
the command line and the Python API.
"""
