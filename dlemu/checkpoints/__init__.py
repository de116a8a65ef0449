"""Checkpoints of a model: what they are made of, written through the storage and timed.

`checkpoint_plan` says who writes which files, `formats` how these look. For every kind of job that saves: checkpoints,
and training between its steps. May import comm, settings and datagen.
"""
