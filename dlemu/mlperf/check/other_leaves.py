"""Runs that are not of training: found by their folders. Those of checkpoints have rules, the others are listed.

Leaves are `CATEGORY/.../TIME`, as mlpstorage of v2.0 and v3.0 leaves them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dlemu.mlperf.check.submission_tree import category_of, stamp_of
from dlemu.results.finding import Finding, Located

CHECKPOINTING = "checkpointing"


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


def listed_others(leaves: Sequence[OtherLeaf]) -> Iterator[Located]:
    """Yield that runs of benchmarks without rules here are not judged."""
    for leaf in leaves:
        if leaf.category != CHECKPOINTING:
            fix = "check it with the edition's own checker"
            seen = f"a run of {leaf.category}: not judged"
            yield Located(leaf.path, Finding("info", "run.other", seen, "a run of training or of checkpoints", fix))
