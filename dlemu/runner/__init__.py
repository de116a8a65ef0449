"""What all kinds of jobs share: starting ranks, handling their failures, telemetry, collecting and saving results.

`job` takes a run from settings to result, `run_list` is the base of every study. Knows no kind of job by name. May
import results and packages below it.
"""
