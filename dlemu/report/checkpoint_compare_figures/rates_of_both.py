"""Rates, times and what they were made of, side by side."""

from __future__ import annotations

from functools import partial

from dlemu.report.checkpoint_comparison import METRICS, OpenedCheckpointComparison
from dlemu.report.compare_figures._sides import bars, grid
from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.sizing.answers import Value

ORDER = 10
_SHOWN = (
    "write_slowest_gib_per_second",
    "write_slowest_seconds",
    "write_fsync_percent",
    "read_slowest_gib_per_second",
    "read_slowest_seconds",
    "read_from_storage_percent",
)


def draw(comparison: OpenedCheckpointComparison, canvas: Canvas) -> Figure | None:
    metrics = comparison.answer.metrics
    panels = [
        partial(
            bars,
            names=comparison.names,
            values=[Value(both.a, both.a_half_width), Value(both.b, both.b_half_width)],
            title=", ".join(METRICS[name]),
            canvas=canvas,
        )
        for name in _SHOWN
        if (both := metrics.get(name)) is not None
    ]
    chart = grid(panels, canvas, 2 if canvas.narrow else 3)
    if chart is None:
        return None
    says = "Means over the checkpoints of a run, by their slowest rank. Thin lines: 95 % intervals over checkpoints."
    return Figure("Checkpoints side by side", says, chart)
