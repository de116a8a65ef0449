"""Reproduces the figures and tables of documents that vendors published, on the user's own storage.

A document is a YAML file in `documents`. `run` runs its steps, each a dlemu command; `rows` brings their results into
one form, of which `page` and `figures` make the tables and figures that the document declares.
"""
