"""The kinds of job: each subfolder measures one thing (training, checkpoints, ...) and holds all code for it.

`dlemu.results.kinds` finds them by their folders; no list of kinds exists. Kinds never import each other: code that two
of them share is in the packages below. May import doctor, report, runner and the packages below them.
"""
