"""Kinds of accelerators: each file here is one, and its name is a value of the setting `train.compute`.

`accelerator_base` has their interface: draw the durations of steps, start a step, wait for its end. May import comm,
settings and datagen.
"""
