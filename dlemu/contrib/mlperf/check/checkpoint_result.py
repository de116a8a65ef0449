"""A checkpointing result: the calls of one model on one system, as the rules on checkpoints check them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from dlemu.contrib.mlperf.audit.checkpoint_leaf import CheckpointLeaf
from dlemu.contrib.mlperf.audit.tolerant import mapping, text
from dlemu.contrib.mlperf.rules.checkpoints import OfficialModel, official_model
from dlemu.contrib.mlperf.rules.editions import Edition
from dlemu.contrib.mlperf.rules.training import Division


@dataclass(frozen=True)
class CheckpointResult:
    """The calls of one model on one system: usually one that writes and one that reads checkpoints."""

    path: str
    edition: Edition
    division: Division
    leaves: tuple[CheckpointLeaf, ...]
    """Sorted by name, that is by time."""

    @cached_property
    def model(self) -> OfficialModel | None:
        """The official model; None for any other."""
        first = self.leaves[0]
        stated = text(first.metadata.get("model")) or text(mapping(first.metadata.get("args")).get("model"))
        return official_model(stated or os.path.basename(self.path) or text(first.settings("model").get("name")))

    @property
    def closed(self) -> bool:
        """Whether it is checked by the rules of CLOSED."""
        return self.division == "closed"

    @property
    def strict(self) -> bool:
        """Whether the edition's own checker checks the tree's layout and files."""
        return self.edition.checks_tree
