"""What all jobs share: start ranks, guard them, record, collect, save; and runs of child processes, one after another.

`job` takes a run from settings to result, `ranks` and `crew` start processes, `run_list` is the base of every study
(sweep, search, ...). Knows no kind of job by name. May import results and packages below it.
"""
