"""What every format of a checkpoint's files does: says which bytes are where in each file; it writes nothing itself."""

from __future__ import annotations

from dlemu.checkpoints.checkpoint_plan import CheckpointPlan
from dlemu.checkpoints.file_layout import FileLayout
from dlemu.checkpoints.shards import Shard


class OneFileAShard:
    """A format that keeps each shard in a file of its own."""

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        """Return the rank's files."""
        return tuple(self.layout(shard) for shard in plan.shards(rank))

    def layout(self, shard: Shard) -> FileLayout:
        """Return where everything is in one shard's file."""
        raise NotImplementedError  # each such format has its own
