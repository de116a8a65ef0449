"""What computes: a file here is a kind of accelerator, its name is what users write in `train.compute`.

`accelerator_base` says what it does: draws durations, starts steps, reports when they are over. May import comm,
settings and datagen.
"""
