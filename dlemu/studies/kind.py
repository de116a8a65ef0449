"""Declares the results of studies: comparisons, searches, sweeps and concurrent jobs. Each imports its code on use."""

from __future__ import annotations

from collections.abc import Callable

from dlemu.results.kinds import Kind, Parts


def _load_compare() -> Parts:
    from dlemu.studies.compare.page import PARTS

    return PARTS


def _load_size() -> Parts:
    from dlemu.studies.size.page import PARTS

    return PARTS


def _load_sweep() -> Parts:
    from dlemu.studies.sweep.page import PARTS

    return PARTS


def _load_together() -> Parts:
    from dlemu.studies.together import PARTS

    return PARTS


def _study(name: str, noun: str, text: str, load: Callable[[], Parts], *, precedence: int = 2) -> Kind:
    return Kind(name=name, noun=noun, answer=f"{name}.json", precedence=precedence, command=name, help=text, load=load)


KIND = _study("compare", "a comparison", "Compare two runs, sweeps or searches.", _load_compare, precedence=0)
ANSWERS = (
    _study("size", "a search", "Find the most accelerators that this storage keeps busy.", _load_size),
    _study("sweep", "a sweep", "Run over several values: ranks, drives, readers, workloads.", _load_sweep),
    _study(
        "together",
        "concurrent jobs",
        "Run several jobs at the same time on one storage: what each costs the others.",
        _load_together,
    ),
)
