"""Which edition a tree is of: a property of the whole tree, by what all its runs leave, not of one leaf alone.

Every leaf votes by its metadata's own word and by what only one edition's tool writes, so that a leaf whose metadata
are gone, or name another edition, is judged as its neighbours are.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from dlemu.mlperf.audit.run_settings import Setup
from dlemu.mlperf.audit.tolerant import mapping, text
from dlemu.mlperf.rules.editions import EDITIONS, Edition, Reading, edition_read, newest_edition
from dlemu.results.finding import Finding

DIVISIONS = ("closed", "open")
_SIGNS = {
    "3.0": ("invocation_start_time", "system_info", "data_access_protocol", "systemname", "provenance_file"),
    "2.0": ("run_result_output",),
}
"""Keys of metadata or of its `args` that only this edition's tool writes."""
_FILES = {
    ".mlps-code-image": "3.0",
    "fs_separation.json": "3.0",
    "provenance.json": "3.0",
    "per_epoch_stats.json": "1.0",
}


_V1_CONFIG = "configs"


class Voter(Protocol):
    """A leaf of any benchmark."""

    @property
    def path(self) -> str: ...
    @property
    def files(self) -> tuple[str, ...]: ...
    @property
    def metadata(self) -> Mapping[str, Any] | None: ...
    @property
    def setup(self) -> Setup: ...


def scope_of(path: str, root: str, *, loose: bool) -> str:
    """Return the tree that a result belongs to: the folder above its division, else what was given to check.

    Runs that lie about (`loose`) in no division are each a tree of their own.
    """
    inside = os.path.relpath(path, root).split(os.sep)
    place = next((index for index, name in enumerate(inside) if name.lower() in DIVISIONS), None)
    if place is not None:
        return os.path.normpath(os.path.join(root, *inside[:place]))
    return path if loose else root


def tree_edition(leaves: Sequence[Voter], reading: Reading, *, named: str | None, phased: bool) -> Edition:
    """Return the edition of a tree whose leaves these are; `named` is one that the user names."""
    votes: Counter[str] = Counter()
    for leaf in leaves:
        for edition, weight in _votes(leaf):
            votes[edition] += weight
    best = max(votes, key=lambda edition: (votes[edition], edition), default="3.0" if phased else "2.0")
    return edition_read(named or best, reading)


def _votes(leaf: Voter) -> Iterator[tuple[str, int]]:
    stated = stated_edition(leaf.metadata)
    if stated in EDITIONS:
        yield stated, 3
    keys = {*mapping(leaf.metadata), *mapping(mapping(leaf.metadata).get("args"))}
    yield from ((edition, 2) for edition, signs in _SIGNS.items() if keys.intersection(signs))
    yield from ((edition, 2) for name, edition in _FILES.items() if name in leaf.files)
    if os.path.isdir(os.path.join(leaf.path, _V1_CONFIG)):
        yield "1.0", 2
    newest = newest_edition(leaf.setup.workload or "", leaf.setup.accelerator or "")
    if newest is not None:
        yield newest.name, 1


def stated_edition(metadata: Mapping[str, Any] | None) -> str:
    """Return the edition that metadata name, empty where they name none."""
    known = mapping(metadata)
    return text(known.get("rules_edition")) or text(known.get("edition")) or ""


def other_editions(leaves: Iterable[Voter], edition: Edition) -> Iterator[tuple[str, Finding]]:
    """Yield the leaves that name another edition than their tree is of."""
    for leaf in leaves:
        stated = stated_edition(leaf.metadata)
        if stated and stated != edition.name:
            seen = f"the metadata name edition {stated}, the tree is of {edition.name}"
            fix = "submit runs of one edition, or name it with --edition"
            yield leaf.path, Finding("error", "edition.differs", seen, "one edition for the whole tree", fix)
