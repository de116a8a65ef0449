"""The read plan: which samples are in each batch of each rank. It is computed, so all processes agree on it.

`samples` plans reading by sample number, `streams` reading files as streams.
"""
