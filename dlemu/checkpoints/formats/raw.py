"""Exactly the tensors' bytes, one after another: what MLPerf Storage v3.0 writes under names that end in .pt."""

from __future__ import annotations

from dlemu.checkpoints.file_layout import FileLayout, Pieces
from dlemu.checkpoints.formats.checkpoint_format_base import OneFileAShard
from dlemu.checkpoints.shards import Shard


class Format(OneFileAShard):
    """Nothing beside the tensors."""

    def layout(self, shard: Shard) -> FileLayout:
        """Return where everything is in one shard's file."""
        pieces = Pieces()
        for tensor in shard.tensors:
            pieces.tensor(tensor)
        return pieces.layout(shard.path)
