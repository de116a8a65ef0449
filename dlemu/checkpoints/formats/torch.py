"""Format `torch`: the files of `torch.save`, as DLIO up to v2.0 and most training scripts write them."""

from __future__ import annotations

from dlemu.checkpoints.formats._torch_zip import TorchZips, torch_state
from dlemu.checkpoints.formats.checkpoint_format_base import OneFilePerShard
from dlemu.checkpoints.shards import FileLayout, LayoutBuilder, Shard


class Format(OneFilePerShard):
    """One zip archive per shard, with a pickle and one record per tensor."""

    def __init__(self) -> None:
        self._zips = TorchZips()

    def layout(self, shard: Shard) -> FileLayout:
        """Return the layout of one shard's file."""
        pieces = LayoutBuilder()
        self._zips.add(pieces, shard.tensors, torch_state, shard.path)
        return pieces.layout(shard.path)
