"""Rehearses a submission before the official tool runs: makes all runs of a result, lays out their tree, checks it.

`rehearse` makes the runs, `edition_tree` writes finished runs into the tree, `datasize` computes how large the data
must be.
"""

EDITION = "3.0"  # the edition and division that are rehearsed
DIVISION = "closed"
NOTE = (  # in every tree of a rehearsal, and in its files
    "A rehearsal by dlemu: neither mlpstorage nor DLIO ran. It predicts what they would show and is no submission;"
    " CLOSED results must come from mlpstorage and DLIO, unchanged."
)
