"""Checks a submission tree, an mlpstorage results folder or a single run against MLPerf Storage's rules.

`check_folder` in `judge` finds the runs (`submission_tree`), recomputes their numbers (`audit`), and applies the rules
in the `*_rules` modules and `system_description`. It only reads files. A rule is a function that yields findings; its
docstring states what must hold.
"""
