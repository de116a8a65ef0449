"""What a storage would keep busy, without running it: a model of loaders, accelerators and storage, calibrated once.

`run_prediction` leads from the question to predict.json, `make_prediction` and `curve` are the model, `from_...`
calibrate it. May import the rest of `dlemu.jobs.training`, which imports nothing of it.
"""
