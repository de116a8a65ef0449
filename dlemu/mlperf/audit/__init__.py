"""Audit of result folders that DLIO or MLPerf Storage left: their numbers recomputed from what they kept.

`find_runs` lists the folders, `audit_run` reads and judges one, `audit_trees` does both in parallel.
"""
