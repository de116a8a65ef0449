"""MLPerf Storage: `rules` of each edition, `audit` of results, `check` of submissions, `rehearsal` of a submission.

Each package imports only those before it.
"""
