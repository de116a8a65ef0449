"""Finds the runs of benchmarks other than training, and groups those of kv_cache and vector_database into results.

A run is found by its folder `CATEGORY/.../TIME`, as mlpstorage of v2.0 and v3.0 names it: `kv_cache/MODEL/run/TIME`,
`vector_database/ENGINE/INDEX/{datasize,datagen,run}/TIME`. `checkpoint_rules` groups the runs of checkpointing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from dlemu.contrib.mlperf.audit.kv_leaf import KvLeaf, read_kv_leaf
from dlemu.contrib.mlperf.audit.vector_leaf import VectorLeaf, read_vector_leaf
from dlemu.contrib.mlperf.check.submission_tree import (
    CHECKPOINTING,
    KV_CACHE,
    PHASES,
    category_of,
    division_of,
    stamp_of,
)
from dlemu.contrib.mlperf.rules.editions import EDITIONS, Edition
from dlemu.contrib.mlperf.rules.training import Division


@dataclass(frozen=True, kw_only=True)
class OtherLeaf:
    """The folder of one run of a benchmark other than training."""

    path: str
    category: str
    """The benchmark, by the name of its folder."""


def other_leaves(root: str) -> list[OtherLeaf]:
    """Return the runs of benchmarks other than training below a folder, in the order of the walk."""
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
    """Sorted by name, that is by time."""

    @property
    def closed(self) -> bool:
        """Whether it is checked by the rules of CLOSED."""
        return self.division == "closed"

    @property
    def model(self) -> str:
        """The model (kv_cache) or index (vector_database), by the name of its folder."""
        return os.path.basename(self.path)

    def phase(self, name: str) -> list[KvLeaf | VectorLeaf]:
        """Return the calls of a phase."""
        return [leaf for leaf in self.leaves if phase_of(leaf.path) == name]


def phase_of(path: str) -> str:
    """Return the phase by the folder above a call's folder; `run` where that names none."""
    above = os.path.basename(os.path.dirname(path))
    return above if above in PHASES else "run"


def other_results(leaves: Sequence[OtherLeaf], edition: str | None, division: Division | None) -> list[OtherResult]:
    """Group the runs of kv_cache and vector_database into results."""
    groups: dict[tuple[str, str], list[str]] = {}
    for leaf in leaves:
        if leaf.category != CHECKPOINTING:
            parent = os.path.dirname(leaf.path)
            folder = os.path.dirname(parent) if os.path.basename(parent) in PHASES else parent
            groups.setdefault((folder, leaf.category), []).append(leaf.path)
    return [
        OtherResult(
            path=folder,
            category=category,
            edition=EDITIONS[edition or "3.0"],  # replaced once the edition of the whole tree is known
            division=division or division_of(folder),
            leaves=tuple((read_kv_leaf if category == KV_CACHE else read_vector_leaf)(path) for path in paths),
        )
        for (folder, category), paths in sorted(groups.items())
    ]
