"""Predicts how long checkpoints take on a given storage, and what they cost training. Formulas: docs/prediction.md.

`run_prediction` computes and saves the answer (predict_checkpoints.json), `wording` and `page` show it. May import the
rest of `dlemu.jobs.checkpoint`, which never imports this package.
"""
