"""What a run left: its folder, with one writer and one reader, and the registry of what can be in one.

`kinds` finds what a folder holds, `measured` writes and reads a run, `live` what goes on, `answer_files` the files of
studies. Knows no kind of job by name. May import checkpoints, loaders, telemetry, metrics and what is below.
"""
