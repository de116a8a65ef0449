"""Rehearses a submission before the official tool runs: sizes the data, runs an edition's sequence, merges the results.

`rehearse` (training), `rehearse_checkpoints` and `rehearse_kv` each rehearse one benchmark: `attempts` runs what is
missing, `edition_tree` writes finished runs in the edition's layout, `run_figures` sums them up. `submission` rehearses
several workloads and `merge` merges their trees. `datasize` and `checkpoint_datasize` compute how large the data must
be. May import everything else of mlperf.
"""

NOTE = (
    "A rehearsal by dlemu: neither mlpstorage nor DLIO ran. It predicts what they would show and is no submission;"
    " CLOSED results must come from mlpstorage and DLIO, unchanged."
)
"""Note in every rehearsed tree and its files."""
