"""Watches a run in progress from outside, by the step logs that its ranks write."""

from __future__ import annotations

import os

from benchmarks.processes import Child
from dlemu.jobs.training.steplog import StepRows, read_log


def wait_for_steps(child: Child, folder: str, ranks: int, steps: int) -> list[StepRows]:
    """Wait until every rank has done `steps` steps; return the rows of each. DlemuError if the run ends before."""
    rows: list[StepRows] = []

    def reached() -> bool:
        rows[:] = [_rows(folder, rank) for rank in range(ranks)]
        return min(map(len, rows)) >= steps

    child.wait_until(reached)
    return rows


def seconds_to_first_step(child: Child, folder: str, ranks: int) -> float:
    """Wait for the first step of every rank; return the time from the command to the start of the last of these."""
    first_rows = [rows[0] for rows in wait_for_steps(child, folder, ranks, 1)]
    start_ns = max(int(row["free_ns"] + row["wait_ns"]) for row in first_rows)
    return (start_ns - child.started_ns) / 1e9


def _rows(folder: str, rank: int) -> StepRows:
    try:
        return read_log(os.path.join(folder, "live", f"rank_{rank:05d}.steps"))
    except FileNotFoundError:  # the rank has not created it yet
        return read_log(os.devnull)
