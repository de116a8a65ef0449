"""The flow common to all kinds of jobs: start ranks, record telemetry, handle failures, collect and save results.

Start with `job`, which takes a run from its settings to its result; `run_list` is the base of every study. This package
knows no kind of job by name. It may import `dlemu.results` and packages below.
"""
