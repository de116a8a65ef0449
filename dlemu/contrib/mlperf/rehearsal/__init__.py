"""Rehearses a submission before the official tool runs: sizes data, runs the newest edition's sequence, checks it.

`rehearse` does the calls, `edition_tree` writes finished calls in the layout, `datasize` computes how large the data
must be. May import everything else of mlperf.
"""

EDITION, DIVISION = "3.0", "closed"  # what is rehearsed
NOTE = (  # in every rehearsed tree and its files
    "A rehearsal by dlemu: neither mlpstorage nor DLIO ran. It predicts what they would show and is no submission;"
    " CLOSED results must come from mlpstorage and DLIO, unchanged."
)
