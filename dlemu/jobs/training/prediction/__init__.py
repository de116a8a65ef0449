"""`dlemu predict` for training: simulates how many accelerators a storage would keep busy, without running them.

`run_prediction` is the entry point; `calibration`, `from_reads` and `from_times` find the speed of the storage,
`model_run` simulates runs on it, and `make_prediction` compares them. May import the rest of `dlemu.jobs.training`.
"""
