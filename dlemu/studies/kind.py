"""Declares the results of studies: comparisons, searches, sweeps and concurrent jobs. Each imports its code on use."""

from __future__ import annotations

from functools import partial

from datagen.registry import import_by_name
from dlemu.results.kinds import Kind


def _study(name: str, page: str, noun: str, text: str, *, precedence: int = 2) -> Kind:
    """Return the kind of a study; `page` is the module with its `PARTS`, imported on use."""
    answer, load = f"{name}.json", partial(import_by_name, f"dlemu.studies.{page}", "PARTS")
    return Kind(name=name, noun=noun, answer=answer, precedence=precedence, command=name, help=text, load=load)


_TOGETHER = "Run several jobs at the same time on one storage: what each costs the others."
KIND = _study("compare", "compare.page", "a comparison", "Compare two runs, sweeps or searches.", precedence=0)
ANSWERS = (
    _study("size", "size.page", "a search", "Find the most accelerators that this storage keeps busy."),
    _study("sweep", "sweep.page", "a sweep", "Run over several values: ranks, drives, readers, workloads."),
    _study("together", "together", "concurrent jobs", _TOGETHER),
)
