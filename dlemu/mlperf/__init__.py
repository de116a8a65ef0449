"""MLPerf Storage: `rules` of each edition, `audit` of results, `check` of submissions, `rehearsal` of one.

Each imports only those before it, and `dlemu.dlio` for DLIO's dialect; nothing below `dlemu.mlperf` knows of it.
"""
