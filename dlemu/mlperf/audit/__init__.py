"""Audit of result folders that DLIO, MLPerf Storage or dlemu left: their numbers recomputed from what they kept.

`audit_trees` finds the runs of trees and audits them in parallel, `audit_run` one of them; `saved_audit` makes rows of
them, `foreign_...` give them to comparisons and predictions. May import `rules` and `dlemu.dlio`, and studies and jobs.
"""
