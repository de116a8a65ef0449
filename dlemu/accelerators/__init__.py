"""Accelerators: each module here is one; its name is a value of the setting `train.compute`.

`accelerator_base` defines their interface.
"""
