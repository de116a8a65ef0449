"""Figures of several runs, as in `dlemu.jobs.training.figures`: one file each, `ORDER` and `draw`."""
