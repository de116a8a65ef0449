"""Comparisons, searches, sweeps and concurrent jobs as kinds of results."""

from __future__ import annotations

from dlemu.results.kinds import Kind, Parts


def _comparison() -> Parts:
    from dlemu.studies.compare.page import PARTS

    return PARTS


def _size() -> Parts:
    from dlemu.studies.size.page import PARTS

    return PARTS


def _sweep() -> Parts:
    from dlemu.studies.sweep.page import PARTS

    return PARTS


def _together() -> Parts:
    from dlemu.studies.together import PARTS

    return PARTS


KIND = Kind(
    name="comparison",
    noun="a comparison",
    marks=("compare.json",),
    command="compare",
    help="Compare two runs, sweeps or searches.",
    load=_comparison,
)
ANSWERS = (
    Kind(
        name="size",
        noun="a search",
        marks=("size.json",),
        precedence=2,
        command="size",
        help="Find the most accelerators that this storage keeps busy.",
        load=_size,
    ),
    Kind(
        name="sweep",
        noun="a sweep",
        marks=("sweep.json",),
        precedence=2,
        command="sweep",
        help="Run over several values: ranks, drives, readers, workloads.",
        load=_sweep,
    ),
    Kind(
        name="together",
        noun="concurrent jobs",
        marks=("together.json",),
        precedence=2,
        command="together",
        help="Run several jobs at the same time on one storage: what each costs the others.",
        load=_together,
    ),
)
