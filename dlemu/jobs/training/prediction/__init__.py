"""`dlemu predict` for training: simulates how many accelerators a storage would keep busy, without running them.

`run_prediction` is the entry point; `calibration` and `from_...` find the speed of the storage, `model_run` simulates
runs on it. May import the rest of `dlemu.jobs.training`.
"""
