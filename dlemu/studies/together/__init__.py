"""Several jobs side by side on one storage: what each costs the others.

`run` runs each job alone, then all at once, and compares; `page` shows it. Imports no kind of job: all that it needs of
them is declared in their `Kind`.
"""
