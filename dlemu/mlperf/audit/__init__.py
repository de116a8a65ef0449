"""Audit of result folders of DLIO, MLPerf Storage and dlemu: recomputes their numbers from the files that a run left.

A run *printed* the numbers in its summary.json and *kept* the times of its steps; DLIO calls the steps between two
checkpoints a *block*; a *leaf* is one run's folder in a submission. May import `rules`, `dlemu.dlio`, studies and jobs.
"""
