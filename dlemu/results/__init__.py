"""Result folders: one writer and one reader, and the registry of the kinds of results.

`kinds` finds which kind a folder holds, `measured` writes and reads a run, `live` reads one in progress, `answer_files`
the files of studies. Knows no kind of job by name. May import checkpoints, loaders, telemetry, metrics and below.
"""
