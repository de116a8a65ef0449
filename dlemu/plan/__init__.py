"""Who reads what: the samples of every batch, by pure arithmetic, the same in every process.

`samples` plans indexed reading, `streams` files read as streams, `permutation` shuffles both. May import datagen
alone; touches no files and starts nothing.
"""
