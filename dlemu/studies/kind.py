"""Comparisons, searches, sweeps and concurrent jobs as kinds of results."""

from __future__ import annotations

from collections.abc import Callable

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


def _kind(
    name: str, noun: str, load: Callable[[], Parts], text: str, *, command: str = "", precedence: int = 2
) -> Kind:
    command = command or name
    marks = (f"{command}.json",)
    return Kind(name=name, noun=noun, marks=marks, precedence=precedence, command=command, help=text, load=load)


KIND = _kind(
    "comparison", "a comparison", _comparison, "Compare two runs, sweeps or searches.", command="compare", precedence=0
)
ANSWERS = (
    _kind("size", "a search", _size, "Find the most accelerators that this storage keeps busy."),
    _kind("sweep", "a sweep", _sweep, "Run over several values: ranks, drives, readers, workloads."),
    _kind(
        "together",
        "concurrent jobs",
        _together,
        "Run several jobs at the same time on one storage: what each costs the others.",
    ),
)
