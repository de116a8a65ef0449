"""The read plan: the samples of each batch of each rank, computed alike in every process.

`samples` plans reading by sample number, `streams` reading files as streams.
"""
