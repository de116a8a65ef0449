"""What `torch.save` writes, and `torch.load` reads: DLIO's way up to v2.0, and that of most training scripts."""

from __future__ import annotations

from dlemu.checkpoints.file_layout import FileLayout, Pieces
from dlemu.checkpoints.formats._torch_zip import TorchZips, torch_state
from dlemu.checkpoints.formats.checkpoint_format_base import OneFileAShard
from dlemu.checkpoints.shards import Shard


class Format(OneFileAShard):
    """A zip archive with a pickle, and each tensor as a record of its own."""

    def __init__(self) -> None:
        self._zips = TorchZips()

    def layout(self, shard: Shard) -> FileLayout:
        """Return where everything is in one shard's file."""
        pieces = Pieces()
        self._zips.add(pieces, shard.tensors, torch_state, shard.path)
        return pieces.layout(shard.path)
