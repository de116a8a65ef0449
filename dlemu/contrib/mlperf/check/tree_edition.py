"""Determines the edition of the rules (2.0, 3.0) that a whole tree was made for.

Every leaf (folder of one call) votes: by the edition that its metadata name, and by files and keys that only one
edition's tool writes. So a leaf whose metadata are missing, or name another edition, is judged like the rest of its
tree.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dlemu.contrib.mlperf.audit.papers import Papers
from dlemu.contrib.mlperf.audit.tolerant import text
from dlemu.contrib.mlperf.rules.editions import EDITIONS, Edition, Reading, edition_read, newest_edition
from dlemu.contrib.mlperf.rules.known import Located, by_rule_at

DIVISIONS = ("closed", "open")
_EDITION_KEYS = {
    "3.0": ("invocation_start_time", "system_info", "data_access_protocol", "systemname", "provenance_file"),
    "2.0": ("run_result_output",),
}
"""Edition -> keys of the metadata, or of its `args`, that only this edition's tool writes."""
_V3_FILES = (".mlps-code-image", "fs_separation.json", "provenance.json")
"""Files of a leaf that only v3.0's tool writes."""


def division_place(folders: Sequence[str]) -> int | None:
    """Return which folder of a path names the division: the one above ORG/results, else the deepest of such a name.

    Folders above the tree, and an organisation, may be called closed or open, too.
    """
    places = [index for index, name in enumerate(folders) if name.lower() in DIVISIONS]
    return max(places, key=lambda index: (folders[index + 2 : index + 3] == ["results"], index), default=None)


def scope_of(path: str, root: str, *, loose: bool) -> str:
    """Return the tree that a result belongs to: the folder above its division, or else `root`.

    A result outside any known layout (`loose`) and in no division is a tree of its own.
    """
    inside = os.path.relpath(path, root).split(os.sep)
    place = division_place(inside)
    if place is not None:
        return os.path.normpath(os.path.join(root, *inside[:place]))
    return path if loose else root


def tree_edition(leaves: Sequence[Papers], reading: Reading, *, named: str | None, phased: bool) -> Edition:
    """Return the edition of the tree with these leaves; `named`, the user's choice, overrides their votes."""
    votes: Counter[str] = Counter()
    for leaf in leaves:
        for edition, weight in _votes(leaf):
            votes[edition] += weight
    best = max(votes, key=lambda edition: (votes[edition], edition), default="3.0" if phased else "2.0")
    return edition_read(named or best, reading)


def _votes(leaf: Papers) -> Iterator[tuple[str, int]]:
    """Yield (edition, weight): most for the edition that is named, least for the newest with this workload."""
    stated = stated_edition(leaf.metadata)
    if stated in EDITIONS:
        yield stated, 3
    keys = {*leaf.metadata, *leaf.args}
    yield from ((edition, 2) for edition, signs in _EDITION_KEYS.items() if keys.intersection(signs))
    yield from (("3.0", 2) for name in _V3_FILES if name in leaf.files)
    newest = newest_edition(leaf.setup.workload or "", leaf.setup.accelerator or "")
    if newest is not None:
        yield newest.name, 1


def stated_edition(metadata: Mapping[str, Any]) -> str:
    """Return the edition that the metadata name; empty when they name none."""
    return text(metadata.get("rules_edition")) or text(metadata.get("edition")) or ""


def other_editions(leaves: Iterable[Papers], edition: Edition) -> Iterator[Located]:
    """Yield the leaves whose metadata name another edition than their tree's."""
    for leaf in leaves:
        stated = stated_edition(leaf.metadata)
        if stated and stated != edition.name:
            seen = f"the metadata name edition {stated}, the whole tree was judged to be {edition.name}"
            yield by_rule_at(leaf.path, "edition.differs", seen)
