"""A submission tree, a results folder of mlpstorage or a single run, held against MLPerf Storage's rules.

`check_folder` (`judge`) finds what is there (`submission_tree`), has it recomputed (`audit`) and applies the rules on
results, papers, times, copies, folders and systems. May import `audit` and `rules`; starts nothing and writes nothing.
"""
