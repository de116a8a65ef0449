"""The same run over several values.

`run` takes the points and `edge` searches for the most that passes; a point is a command, its figures are those of its
kind. Imports no kind of job.
"""
