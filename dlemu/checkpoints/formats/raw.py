"""Format `raw`: the tensors' bytes back to back without headers, as MLPerf Storage v3.0 writes its .pt files."""

from __future__ import annotations

from dlemu.checkpoints.checkpoint_plan import CheckpointFormat
from dlemu.checkpoints.shards import FileLayout, Shard, file_layout


class Format(CheckpointFormat):
    """One headerless file per shard."""

    def layout(self, shard: Shard) -> FileLayout:
        return file_layout(shard.path, shard.tensors)
