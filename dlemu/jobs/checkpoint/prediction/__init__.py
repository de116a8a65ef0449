"""Predicts how long checkpoints take on a given storage, and what they cost training. Formulas: docs/prediction.md.

`run_prediction` computes and saves the answer (`prediction`: predict_checkpoints.json), `page` shows it. May import the
rest of `dlemu.jobs.checkpoint`, which never imports this package.
"""
