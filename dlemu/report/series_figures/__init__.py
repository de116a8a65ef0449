"""Figures of several runs, as in `dlemu.report.figures`: one file each, `PLACE` and `draw`."""
