"""Compatibility with DLIO: its command line, its workload files, and its result files for runs measured by dlemu.

This package has none of MLPerf's rules and names no kind of job: a kind exports its runs as `dlemu.results.exported`.
"""
