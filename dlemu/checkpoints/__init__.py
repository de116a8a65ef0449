"""Model checkpoints: which files they consist of, and how ranks write, read, time and verify these.

`checkpoint_plan` computes which rank writes which files, `formats` lays out their bytes. Used by the checkpoint job and
by training, which saves between its steps. May import comm, settings and datagen.
"""
