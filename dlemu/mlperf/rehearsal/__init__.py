"""A rehearsal of an MLPerf Storage submission: the edition's sequence of runs, laid out as its tree.

`sequence` runs what is missing, `layout` puts a finished run into the tree, `papers` writes what lies beside the runs,
`outcome` sums them up. Nothing of it is a submission: CLOSED results come from mlpstorage and DLIO, unchanged.
"""

NOTE = (
    "A rehearsal by dlemu: neither mlpstorage nor DLIO ran. It predicts what they would show and is no submission;"
    " CLOSED results must come from mlpstorage and DLIO, unchanged."
)
"""What every tree says of itself."""
