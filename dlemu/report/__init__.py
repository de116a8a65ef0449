"""Presents results: tables, lines of text and figures, on the terminal and on an HTML page.

Each kind of result decides what is shown (`Parts` in `dlemu.results.kinds`); this package lays it out and draws it, and
knows no kind by name. May import runner, results, metrics and the packages below them.
"""
