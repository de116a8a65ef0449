"""Presents results: tables, lines of text and figures, on the terminal and on an HTML page.

What is shown, each kind of job decides by its `Parts` (`dlemu.results.kinds`); this package lays it out and draws it,
and knows no kind of job by name. May import runner, results, metrics and the packages below them.
"""
