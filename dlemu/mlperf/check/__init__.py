"""A submission tree, a results folder of mlpstorage or a single run, held against MLPerf Storage's rules.

`check_folder` finds what is there (`find`), recomputes it (`dlemu.mlperf.audit`) and applies the rules, one module a
subject: `dataset`, `parameters`, `runs`, `files`, `submission`, `systems`.
"""
