"""Several runs on one page: the trials of a search, the points of a sweep, folders that a user names.

`series` collects what kinds and studies say of themselves (`Kind.points`), `page` shows it; a figure is a file of
`figures`. Imports no kind of job.
"""
