"""Reproduces vendors' documents: `document` declares runs, `run` starts them, `rows` makes tables of the results."""
