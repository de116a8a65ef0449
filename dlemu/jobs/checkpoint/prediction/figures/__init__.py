"""Figures of predicted checkpoints, one file each, as in `dlemu.jobs.training.figures`."""
