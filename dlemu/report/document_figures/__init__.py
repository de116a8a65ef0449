"""Figures of vendors' documents, as in `dlemu.report.figures`: one file each, `ORDER` and `draw`."""
