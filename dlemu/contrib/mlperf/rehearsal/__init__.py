"""Rehearses a submission before the official tool runs: sizes the data, runs the newest edition's sequence, checks it.

`rehearse` does the calls of a rehearsal, `rehearse_training` and `rehearse_checkpoints` have what is of one benchmark,
`edition_tree` writes finished runs in the edition's layout. `datasize` and `checkpoint_datasize` compute how large the
data must be. May import everything else of mlperf.
"""

EDITION = "3.0"
"""The edition that is rehearsed."""
NOTE = (
    "A rehearsal by dlemu: neither mlpstorage nor DLIO ran. It predicts what they would show and is no submission;"
    " CLOSED results must come from mlpstorage and DLIO, unchanged."
)
"""Note in every rehearsed tree and its files."""
