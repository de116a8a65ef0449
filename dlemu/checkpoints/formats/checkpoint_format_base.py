"""Base class of the formats that store each shard in one file."""

from __future__ import annotations

from dlemu.checkpoints.checkpoint_plan import CheckpointPlan
from dlemu.checkpoints.shards import FileLayout, Shard


class OneFilePerShard:
    """A format that stores each shard in a file of its own; subclasses implement `layout`."""

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        """Return the rank's files."""
        return tuple(self.layout(shard) for shard in plan.shards(rank))

    def layout(self, shard: Shard) -> FileLayout:
        """Return the layout of one shard's file."""
        raise NotImplementedError  # each format that derives from it has its own
