"""The figures of a training run, in the order of its page."""

from __future__ import annotations

from dlemu.jobs.training.figures.accelerators import loss_parts, step_split, utilisation
from dlemu.jobs.training.figures.histograms import batch_time, queue_depth_share
from dlemu.jobs.training.figures.over_time import host_timeline, hosts, queue_depth, throughput

FIGURES = (
    utilisation,
    loss_parts,
    step_split,
    throughput,
    queue_depth,
    queue_depth_share,
    batch_time,
    hosts,
    host_timeline,
)
