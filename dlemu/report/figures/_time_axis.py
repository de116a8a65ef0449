"""The time axis that figures over a run share: seconds since training began, with the start of each epoch."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt
import numpy as np

from dlemu.emulator.steplog import StepRows
from dlemu.metrics.over_time import mean_rates
from dlemu.report.figures.figure_base import MUTED, Canvas, data, rounded
from dlemu.report.result import Floats, Reading, Run

BINS, NARROW_BINS = 320, 160
"""Points of a line: more can't be told apart at the figures' width."""
_NAMED_EPOCHS = 12


def span_seconds(run: Run) -> tuple[float, float]:
    """Return when the first step began and the last one ended."""
    assert run.steps is not None
    ends = run.seconds("free_ns", run.steps) + _lasted(run.steps)
    return 0.0, float(ends.max())


def edges(run: Run, canvas: Canvas) -> Floats:
    """Return the bins' edges for a line over the whole run."""
    return np.linspace(*span_seconds(run), (NARROW_BINS if canvas.narrow else BINS) + 1)


def x_axis(run: Run, *, named: bool = True) -> alt.X:
    """Return the axis of `at`, in seconds; not `named` it is a bare line, for all panels but the lowest."""
    scale = alt.Scale(domain=list(span_seconds(run)), nice=False)
    title = "seconds since training began" if named else None
    return alt.X("at:Q", scale=scale, title=title, axis=alt.Axis(grid=False, labels=named, ticks=named))


def epoch_marks(run: Run, *, named: bool = True) -> alt.LayerChart:
    """Draw a line where each epoch begins, with its number when there are few."""
    assert run.training is not None
    rows, begun = run.training, []
    for epoch in np.unique(rows["epoch"]):
        first = rows[rows["epoch"] == epoch]
        begun.append({"at": round(float(run.seconds("free_ns", first).min()), 3), "name": f"epoch {epoch}"})
    marks = alt.Chart(data(begun)).mark_rule(color=MUTED, strokeDash=[2, 3], strokeWidth=1).encode(x="at:Q")
    if not named or len(begun) > _NAMED_EPOCHS:
        return alt.layer(marks)
    names = alt.Chart(data(begun)).mark_text(align="left", baseline="bottom", dx=3, dy=-2, color=MUTED, fontSize=10)
    return marks + names.encode(x="at:Q", y=alt.value(0), text="name:N")


def line(one: Reading, canvas: Canvas) -> tuple[Floats, Floats]:
    """Return a reading's points from the start of training on; its first value is that of the time before it, too."""
    kept = one.seconds > 0
    seconds, values = thinned(one.seconds[kept], one.values[kept], NARROW_BINS if canvas.narrow else BINS)
    if len(values):
        seconds, values = np.insert(seconds, 0, 0.0), np.insert(values, 0, values[0])
    return seconds, values


def summed(readings: list[Reading], bounds: Floats) -> Floats:
    """Add up rates of several sources: each value stands for the time since the one before it."""
    total = np.zeros(len(bounds) - 1)
    for one in readings:
        if len(one.seconds) > 1:
            starts, ends = one.seconds[:-1], one.seconds[1:]
            longer = ends > starts
            total += mean_rates(starts[longer], ends[longer], (one.values[1:] * (ends - starts))[longer], bounds)
    return total


def binned(readings: list[Reading], run: Run, canvas: Canvas) -> Iterator[tuple[float, float]]:
    """Yield moment and sum of several sources' values, up to the last reading."""
    bounds = edges(run, canvas)
    last = max((float(one.seconds[-1]) for one in readings if len(one.seconds)), default=0.0)
    for at, value in zip(rounded(bounds[1:]), rounded(summed(readings, bounds), 4), strict=True):
        if at <= last:
            yield at, value


def thinned(seconds: Floats, values: Floats, most: int = BINS) -> tuple[Floats, Floats]:
    """Return at most `most` points: means over neighbours, at the last moment of each group."""
    if len(values) <= most:
        return seconds, values
    first = np.linspace(0, len(values), most + 1).astype(int)[:-1]
    counts = np.diff(np.append(first, len(values)))
    return seconds[first + counts - 1], np.add.reduceat(values, first) / counts


def _lasted(rows: StepRows) -> Floats:
    lasted: Floats = (rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"]) / 1e9
    return lasted
