"""Comparisons, searches, sweeps and concurrent jobs as kinds of results."""

from __future__ import annotations

from functools import partial

from datagen.registry import import_by_name
from dlemu.results.kinds import Kind


def _kind(name: str, noun: str, module: str, text: str, *, command: str = "", precedence: int = 2) -> Kind:
    """Return a kind whose code is PARTS of a module of this package, imported when it is used."""
    return Kind(
        name=name,
        noun=noun,
        marks=(f"{command or name}.json",),
        precedence=precedence,
        command=command or name,
        help=text,
        load=partial(import_by_name, f"dlemu.studies.{module}", "PARTS"),
    )


KIND = _kind(
    "comparison",
    "a comparison",
    "compare.page",
    "Compare two runs, sweeps or searches.",
    command="compare",
    precedence=0,
)
ANSWERS = (
    _kind("size", "a search", "size.page", "Find the most accelerators that this storage keeps busy."),
    _kind("sweep", "a sweep", "sweep.page", "Run over several values: ranks, drives, readers, workloads."),
    _kind(
        "together",
        "concurrent jobs",
        "together",
        "Run several jobs at the same time on one storage: what each costs the others.",
    ),
)
