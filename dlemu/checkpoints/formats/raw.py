"""Format `raw`: the tensors' bytes back to back without headers, as MLPerf Storage v3.0 writes its .pt files."""

from __future__ import annotations

from dlemu.checkpoints.checkpoint_plan import CheckpointFormat
from dlemu.checkpoints.shards import FileLayout, Shard, laid_out


class Format(CheckpointFormat):
    """Tensors only."""

    def layout(self, shard: Shard) -> FileLayout:
        return laid_out(shard.path, shard.tensors)
