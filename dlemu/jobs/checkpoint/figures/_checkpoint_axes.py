"""Shared by the figures of checkpoints: the phases, and the axis of time since the first checkpoint began."""

from __future__ import annotations

import altair as alt
import numpy as np
from numpy.typing import NDArray

from dlemu.checkpoints.io_rows import READ, WRITE
from dlemu.jobs.checkpoint.result import CheckpointRun

PHASES = ((WRITE, "written"), (READ, "read"))


def begin_ns(run: CheckpointRun) -> int:
    """Return when the first checkpoint began."""
    return int(run.whole["began_ns"].min()) if len(run.whole) else 0


def seconds(run: CheckpointRun, stamps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Convert times in nanoseconds to seconds since the first checkpoint began."""
    since: NDArray[np.float64] = (stamps - begin_ns(run)) / 1e9
    return since


def time_axis(*, named: bool = True) -> alt.X:
    """Return the x axis of time, with or without its title."""
    return alt.X("at:Q", title="seconds since the first checkpoint began" if named else None, axis=alt.Axis(grid=False))
