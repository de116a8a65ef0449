"""Result folders: one writer and one reader, and the registry of the kinds of results.

`kinds` finds which kind a folder holds, `measured` writes and reads a run, `live` reads one in progress, `answer_files`
the files of studies. Knows no kind of job by name. May import checkpoints, loaders, telemetry, metrics and below.
"""

SUMMARY, FACTS, CONFIG = "summary.json", "facts.json", "config.yaml"
TELEMETRY = "telemetry.parquet"
LIVE = "live"
"""Subfolder with the files that ranks write while the run goes on."""
README = "README"
"""File in live/ that says how to read a run that was killed."""
KILLED = "the run ended before it could write its result: killed, or without space"
"""The `failure` of a run that nobody could save."""
ADVICE = "set output.folder to a writable folder; the step logs are kept in live/ of the run's folder"
"""Advice when a file of a run can't be written."""
