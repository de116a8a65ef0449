"""Base class of the formats of checkpoint files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlemu.checkpoints.shards import FileLayout, Shard

if TYPE_CHECKING:
    from dlemu.checkpoints.checkpoint_plan import CheckpointPlan


class CheckpointFormat:
    """A file format, whose module has a class `Format`, made without arguments; it implements `layout` or `files`.

    Both are pure arithmetic: no heavy imports, no files opened.
    """

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        """Return the files that one of the job's ranks writes, in order; no two ranks write the same file."""
        return tuple(self.layout(shard) for shard in plan.shards(rank))

    def layout(self, shard: Shard) -> FileLayout:
        """Return the layout of one shard's file."""
        raise NotImplementedError
