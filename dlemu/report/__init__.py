"""From a result to what people look at: tables, lines and figures, on the terminal and on a page.

What is shown, and in which words, is up to each job's own `page` and `wording`; here it is laid out and drawn. Knows
no kind of job by name. May import runner, results, metrics and what is below.
"""
