"""Result folders: one writer and one reader, and the registry of the kinds of results.

`kinds` finds the kind of a folder's result, `measured` writes and reads a run, `live` one that is not saved yet, and
`answer_files` JSON files. Knows no kind of job by name. May import checkpoints, loaders, telemetry, metrics and below.
"""

SUMMARY, FACTS, CONFIG = "summary.json", "facts.json", "config.yaml"
TELEMETRY = "telemetry.parquet"
LIVE = "live"  # subfolder with the files that ranks write while the run is in progress
README = "README"  # file in live/ that explains how to read a run that was killed
KILLED = "the run ended before it could write its result: killed, or without space"
"""The `failure` of a run whose ranks ended before they saved its result."""
ADVICE = "set output.folder to a writable folder; the step logs are kept in live/ of the run's folder"
"""End of the error for a file of a run that can't be written."""
