"""dlemu knows time: it streams datasets through real loaders while emulated accelerators compute, and says what waited.

It knows no bytes: what a dataset holds and how it is read is `datagen`'s.
"""

__version__ = "0.1.0"
