"""Comparisons, searches, sweeps and concurrent jobs as kinds of results."""

from __future__ import annotations

from collections.abc import Callable

from dlemu.results.kinds import Kind, Parts


def _compare() -> Parts:
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


def _kind(name: str, noun: str, text: str, load: Callable[[], Parts], *, precedence: int = 2) -> Kind:
    return Kind(name=name, noun=noun, answer=f"{name}.json", precedence=precedence, command=name, help=text, load=load)


_TOGETHER_HELP = "Run several jobs at the same time on one storage: what each costs the others."
KIND = _kind("compare", "a comparison", "Compare two runs, sweeps or searches.", _compare, precedence=0)
ANSWERS = (
    _kind("size", "a search", "Find the most accelerators that this storage keeps busy.", _size),
    _kind("sweep", "a sweep", "Run over several values: ranks, drives, readers, workloads.", _sweep),
    _kind("together", "concurrent jobs", _TOGETHER_HELP, _together),
)
