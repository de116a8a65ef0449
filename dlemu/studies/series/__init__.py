"""Several runs on one page: the trials of a search, the points of a sweep, folders that a user names.

`series` collects the points of each result (`Kind.points`), `page` shows them; each module of `figures` is a figure.
Imports no kind of job.
"""
