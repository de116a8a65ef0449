"""Figures of several runs, as in `dlemu.report.figures`: one file each, `ORDER` and `draw`."""
