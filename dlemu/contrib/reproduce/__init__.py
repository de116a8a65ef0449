"""Reproduces the figures and tables of documents that vendors published, on the user's own storage.

Each module of `documents` is one document; `run` runs its steps, each a dlemu command, `opened` gives their results to
its tables and figures. May import jobs and the other studies.
"""
