"""A submission tree, a results folder of mlpstorage or a single run, held against MLPerf Storage's rules.

`check_folder` (`judge`) finds what is there (`submission_tree`), recomputes it (`dlemu.mlperf.audit`) and applies the
rules: `result_rules` on runs and their dataset, `tree_rules` on folders and files, `system_description` on systems/.
"""
