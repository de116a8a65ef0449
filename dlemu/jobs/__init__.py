"""The kinds of job: each subfolder holds all code of one measurement (training, checkpoints, probes).

`dlemu.results.kinds` discovers the subfolders; there is no list to extend. Kinds never import each other: shared code
is in lower layers. May import doctor, report, runner and the layers below them.
"""
