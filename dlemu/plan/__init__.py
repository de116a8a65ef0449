"""The read plan: which samples are in each batch of each rank. It is computed, so all processes agree on it.

`samples` plans reading by sample number, `streams` reading files as streams, and `permutation` shuffles for both. May
import datagen alone; accesses no files and starts no processes.
"""
