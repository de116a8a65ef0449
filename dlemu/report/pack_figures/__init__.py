"""Figures of packing, as in `dlemu.report.figures`: one file each, `ORDER` and `draw`."""
