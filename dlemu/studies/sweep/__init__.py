"""The same run over several values.

`run` runs the points and `bracket` searches for the largest value that passes; a point is a command, whose figures are
defined by its kind of job. Imports no kind of job.
"""
