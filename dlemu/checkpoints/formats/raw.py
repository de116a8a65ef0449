"""Format `raw`: the tensors' bytes back to back without headers, as MLPerf Storage v3.0 writes its .pt files."""

from __future__ import annotations

from dlemu.checkpoints.formats.checkpoint_format_base import OneFilePerShard
from dlemu.checkpoints.shards import FileLayout, LayoutBuilder, Shard


class Format(OneFilePerShard):
    """Tensors only."""

    def layout(self, shard: Shard) -> FileLayout:
        """Return the layout of one shard's file."""
        pieces = LayoutBuilder()
        for tensor in shard.tensors:
            pieces.tensor(tensor)
        return pieces.layout(shard.path)
