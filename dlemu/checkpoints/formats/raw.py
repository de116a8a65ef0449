"""Exactly the tensors' bytes, one after another: what MLPerf Storage v3.0 writes under names that end in .pt."""

from __future__ import annotations

from dlemu.checkpoints.formats.checkpoint_format_base import FileLayout, OneFileAShard, Pieces
from dlemu.checkpoints.shards import Shard


class Format(OneFileAShard):
    """Nothing beside the tensors."""

    def layout(self, shard: Shard) -> FileLayout:
        """Return where everything lies in one shard's file."""
        pieces = Pieces()
        for tensor in shard.tensors:
            pieces.tensor(tensor)
        return pieces.layout(shard.path)
