"""Names of the files of a result's folder; light, for those who only look for results."""

from __future__ import annotations

SUMMARY, FACTS, CONFIG = "summary.json", "facts.json", "config.yaml"
TELEMETRY, BLOCK_TRACE = "telemetry.parquet", "block_trace.parquet"
LIVE = "live"
"""Subfolder of what the ranks leave while the run goes on."""
KILLED = "the run was killed before it could write its result"
"""What stands as the failure of a run that nobody could save."""
