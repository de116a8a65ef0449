"""The figures of a training run."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.jobs.training.figures.accelerators import loss_parts, step_split, utilisation
from dlemu.jobs.training.figures.histograms import batch_time, latency, queue_depth_share, request_size
from dlemu.jobs.training.figures.over_time import host_timeline, hosts, queue_depth, throughput
from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import Canvas, Figure

FIGURES = (
    utilisation,
    loss_parts,
    step_split,
    throughput,
    queue_depth,
    queue_depth_share,
    latency,
    request_size,
    batch_time,
    hosts,
    host_timeline,
)


def figures(run: Run, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield name and figure of those that apply, in the order of the page."""
    for draw in FIGURES:
        if (figure := draw(run, canvas)) is not None:
            yield draw.__name__, figure
