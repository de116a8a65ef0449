"""Documents that vendors published, reproduced on the reader's own storage: what to run, step by step.

A document is a file of `documents`; `run` takes its steps, each a command, `opened` gives it their results. May import
jobs and the other studies.
"""
