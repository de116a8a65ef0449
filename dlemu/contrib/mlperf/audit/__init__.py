"""Audit of result folders of DLIO, MLPerf Storage and dlemu: recomputes their numbers from the files of a run.

`audit_trees` finds and audits all runs below some folders, `audit_answer` makes rows and reports of them, and the
modules `foreign_...` turn runs of other tools into input for `dlemu compare` and `dlemu predict`.

*Printed* numbers are those in a run's summary.json. A run *kept* the times of its steps if it wrote them into other
files. A *block* is DLIO's name for the steps between two checkpoints. A *call* of mlpstorage has a folder of its own.
As in `check`, the docstring of a function that yields findings may state what must hold.
"""
