"""How long checkpoints would take on a storage, and what they would cost a training. Formulas: docs/prediction.md.

`run_prediction` leads from the question to predict_checkpoints.json, `wording` and `page` say what it holds. May import
the rest of `dlemu.jobs.checkpoint`, which imports nothing of it.
"""
