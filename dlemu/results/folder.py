"""A run's folder: one writer, one reader."""

from __future__ import annotations

from dlemu.results.run import Run
from dlemu.results.summary import Summary

ADVICE = "set output.folder to a folder you may write; the step logs are kept in live/ of the run's folder"
"""What to do when a file of a run can't be written."""


def write_run(run: Run) -> None:
    """Write config.yaml, facts.json, steps.parquet, telemetry.parquet, block_trace.parquet and summary.json.

    Each through a temporary name; summary.json last. Raises SpaceError.
    """
    raise RuntimeError("under construction")


def read_run(folder: str) -> Run:
    """Read a run's folder, also of older versions; raises UserError for one that holds no result or a damaged one."""
    raise RuntimeError("under construction")


def read_summary(folder: str) -> Summary:
    """Read summary.json as it stands, for what is to be compared with `read_run(folder).summary`; raises UserError."""
    raise RuntimeError("under construction")


def holds_run(folder: str) -> bool:
    """Say whether the folder has a summary.json of ours."""
    raise RuntimeError("under construction")


def read_config(folder: str) -> str:
    """Return the composed configuration as YAML; empty when the folder has none."""
    raise RuntimeError("under construction")
