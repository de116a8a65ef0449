"""MLPerf Storage: the editions' `rules`, `audit` of results, `check` of submissions, `rehearsal` of a submission.

Each of these packages imports only the ones named before it.
"""
