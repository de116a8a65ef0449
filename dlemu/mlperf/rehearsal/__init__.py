"""A rehearsal of an MLPerf Storage submission: the edition's sequence of runs, laid out as its tree.

`rehearse` leads through it, `attempts` runs what is missing, `edition_tree` lays out what is finished, `run_figures`
sums it up. Nothing of it is a submission: CLOSED results come from mlpstorage and DLIO, unchanged.
"""

NOTE = (
    "A rehearsal by dlemu: neither mlpstorage nor DLIO ran. It predicts what they would show and is no submission;"
    " CLOSED results must come from mlpstorage and DLIO, unchanged."
)
"""What every tree says of itself."""
