"""Synthetic datasets as bytes: how their files are laid out, generated, verified and read.

Nothing here depends on training, accelerators or frameworks; `dlemu` imports datagen, never the reverse.
"""
