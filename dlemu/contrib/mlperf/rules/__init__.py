"""The rules of each edition of MLPerf Storage, as data; `check` applies them.

`training` computes the required size of a dataset, `checkpoints` has the official models, `core_config` the settings
that define a workload, `editions` the differences between editions, `known` the table of all rules and their findings.
"""
