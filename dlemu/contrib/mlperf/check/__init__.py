"""Checks a submission tree, an mlpstorage results folder or a single run against MLPerf Storage's rules.

`check_folder` in `judge` finds the runs (`submission_tree`), recomputes their numbers (`audit`) and applies the rules:
the `*_rules` modules, `run_records` and `system_description`. It only reads files. May import `audit` and `rules`.
"""
