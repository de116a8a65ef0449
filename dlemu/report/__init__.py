"""Presents results: tables, lines of text and figures, on the terminal and on an HTML page.

Each kind of job decides in its own `page` and `wording` what is shown; this package lays it out and draws it, and knows
no kind of job by name. May import runner, results, metrics and the packages below them.
"""
