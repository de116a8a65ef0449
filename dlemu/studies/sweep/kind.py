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
    read="run.read_sweep",
    result="run.SweepAnswer",
    points="run.points_of",
)
