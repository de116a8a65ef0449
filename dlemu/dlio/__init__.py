"""Compatibility with DLIO: its command line, its workload files, and its result files for runs measured by dlemu.

Nothing here knows MLPerf's rules or names a kind of job: each kind has a part `dlemu.results.exported`.
"""
