"""Audit of result folders of DLIO, MLPerf Storage and dlemu: recomputes their numbers from the files that a run left.

`audit_trees` finds and audits all runs below some folders, `audit_answer` makes rows and reports of them, and the
modules `foreign_...` turn runs of other tools into input for `dlemu compare` and `dlemu predict`.

A run *printed* the numbers in its summary.json, and *kept* the times of its steps in other files. A *block* is DLIO's
name for the steps between two checkpoints. A *leaf* is one run's folder in a submission. May import `rules`.
"""
