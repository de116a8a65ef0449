"""The story of a run, told once: prepare, start the ranks, guard, collect, save.

`training.train` tells it; `datasets` makes and verifies datasets with the same ranks. Nothing here prints: what goes on
is told to a frontend (`events`), and what went wrong is raised.
"""
