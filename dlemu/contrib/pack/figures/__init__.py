"""Figures of packing, one per file, with `ORDER` and `draw` as in `dlemu.jobs.training.figures`."""
