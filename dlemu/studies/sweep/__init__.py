"""Runs a job with several values of settings, given or searched for: `run` runs the points, `page` shows them."""
