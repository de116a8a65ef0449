"""Runs that are not of training: found by their folders. Those of checkpoints have rules of their own.

Leaves are `CATEGORY/.../TIME`, as mlpstorage of v2.0 and v3.0 leaves them: `kv_cache/MODEL/run/TIME`,
`vector_database/ENGINE/INDEX/{datasize,datagen,run}/TIME`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from dlemu.mlperf.audit.kv_leaf import KvLeaf, read_kv_leaf
from dlemu.mlperf.audit.vector_leaf import VectorLeaf, read_vector_leaf
from dlemu.mlperf.check.submission_tree import CHECKPOINTING, KV_CACHE, PHASES, category_of, division_of, stamp_of
from dlemu.mlperf.rules.editions import EDITIONS, Edition
from dlemu.mlperf.rules.training import Division


@dataclass(frozen=True, kw_only=True)
class OtherLeaf:
    """One run of a benchmark that is not training."""

    path: str
    category: str


def other_leaves(root: str) -> list[OtherLeaf]:
    """Return the runs below a folder that are not of training, by their paths."""
    leaves = []
    for folder, below, _ in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        category = category_of(folder)
        if category is not None and stamp_of(os.path.basename(folder)) is not None:
            leaves.append(OtherLeaf(path=folder, category=category))
            below[:] = []
    return leaves


@dataclass(frozen=True, kw_only=True)
class OtherResult:
    """The runs of one kv_cache model, or of one index of a vector database, on one system."""

    path: str
    category: str
    edition: Edition
    division: Division
    leaves: tuple[KvLeaf | VectorLeaf, ...]
    """In the order of their names, which are times."""

    @property
    def closed(self) -> bool:
        """Whether it is held against the rules of CLOSED."""
        return self.division == "closed"

    @property
    def model(self) -> str:
        """What its folder calls the model, or the index."""
        return os.path.basename(self.path)

    def phase(self, name: str) -> list[KvLeaf | VectorLeaf]:
        """Return the calls of a phase."""
        return [leaf for leaf in self.leaves if phase_of(leaf.path) == name]


def phase_of(path: str) -> str:
    """Return the phase that a call's folder is in; a run where no folder says so."""
    above = os.path.basename(os.path.dirname(path))
    return above if above in PHASES else "run"


def other_results(leaves: Sequence[OtherLeaf], edition: str | None, division: Division | None) -> list[OtherResult]:
    """Return the results of kv_cache and vector_database that the leaves belong to."""
    groups: dict[tuple[str, str], list[str]] = {}
    for leaf in leaves:
        if leaf.category != CHECKPOINTING:
            above = os.path.dirname(leaf.path)
            place = os.path.dirname(above) if os.path.basename(above) in PHASES else above
            groups.setdefault((place, leaf.category), []).append(leaf.path)
    return [
        OtherResult(
            path=place,
            category=category,
            edition=EDITIONS[edition or "3.0"],  # until that of the whole tree is known
            division=division or division_of(place),
            leaves=tuple((read_kv_leaf if category == KV_CACHE else read_vector_leaf)(path) for path in paths),
        )
        for (place, category), paths in sorted(groups.items())
    ]
