"""Declares the results of studies: comparisons, searches, sweeps and concurrent jobs. Each imports its code on use."""

from __future__ import annotations

from functools import partial

from dlemu.results.kinds import Kind, Parts


def _load(name: str) -> Parts:
    if name == "compare":
        from dlemu.studies.compare.page import PARTS
    elif name == "size":
        from dlemu.studies.size.page import PARTS
    elif name == "sweep":
        from dlemu.studies.sweep.page import PARTS
    else:
        from dlemu.studies.together import PARTS
    return PARTS


def _study(name: str, noun: str, text: str, *, precedence: int = 2) -> Kind:
    answer, load = f"{name}.json", partial(_load, name)
    return Kind(name=name, noun=noun, answer=answer, precedence=precedence, command=name, help=text, load=load)


KIND = _study("compare", "a comparison", "Compare two runs, sweeps or searches.", precedence=0)
ANSWERS = (
    _study("size", "a search", "Find the most accelerators that this storage keeps busy."),
    _study("sweep", "a sweep", "Run over several values: ranks, drives, readers, workloads."),
    _study(
        "together", "concurrent jobs", "Run several jobs at the same time on one storage: what each costs the others."
    ),
)
