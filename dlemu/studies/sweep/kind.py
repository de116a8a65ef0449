"""The same run over several values."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="sweep",
    noun="a sweep",
    marks=("sweep.json",),
    precedence=2,
    command="sweep",
    help="Run over several values: ranks, drives, readers, workloads.",
    read="points.read_sweep",
    result="run.SweepAnswer",
    page="points.open_page",
    points="points.points",
)
