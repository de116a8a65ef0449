"""What a submitter does before the official tool runs: size the data, rehearse the edition's runs, merge the trees.

`rehearse` leads through it, `attempts` runs what is missing, `edition_tree` lays out what is finished, `run_figures`
sums it up; `datasize` and `checkpoint_datasize` say how large the data must be. May import everything else of mlperf.
"""

NOTE = (
    "A rehearsal by dlemu: neither mlpstorage nor DLIO ran. It predicts what they would show and is no submission;"
    " CLOSED results must come from mlpstorage and DLIO, unchanged."
)
"""What every tree says of itself."""
