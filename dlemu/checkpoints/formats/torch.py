"""Format `torch`: the files of `torch.save`, as DLIO up to v2.0 and most training scripts write them."""

from __future__ import annotations

from dlemu.checkpoints.checkpoint_plan import CheckpointFormat
from dlemu.checkpoints.formats._torch_zip import archive_of, torch_state
from dlemu.checkpoints.shards import FileLayout, Shard, file_layout


class Format(CheckpointFormat):
    """One zip archive per shard, with a pickle and one record per tensor."""

    def layout(self, shard: Shard) -> FileLayout:
        shapes = tuple((tensor.name, tensor.shape, tensor.dtype) for tensor in shard.tensors)
        return file_layout(shard.path, archive_of(torch_state, shapes).contents(shard.tensors, shard.path))
