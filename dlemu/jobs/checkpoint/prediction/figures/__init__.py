"""Figures on the page of a checkpoint prediction, one module each, as in `dlemu.jobs.training.figures`."""
