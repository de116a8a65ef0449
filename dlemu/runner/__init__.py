"""What every job shares: start the ranks, guard them, record, collect, save; and child runs, one after another.

`job` is the way of a run from settings to result, `ranks` and `crew` start processes, `run_list` is what every study
has. Knows no kind of job by name. May import results and what is below; nothing above is known here.
"""
