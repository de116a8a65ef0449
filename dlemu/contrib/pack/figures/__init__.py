"""The figure of packings, as those of `dlemu.jobs.training.figures`."""
