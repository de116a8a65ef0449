"""safetensors: a JSON header with each tensor's name, type, shape and place, then the tensors' bytes.

https://github.com/huggingface/safetensors: 8 bytes of the header's length (little-endian), the header, filled up with
spaces to 8 bytes, and the tensors without a gap between them.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from dlemu.checkpoints.file_layout import FileLayout, Pieces
from dlemu.checkpoints.formats.checkpoint_format_base import OneFileAShard
from dlemu.checkpoints.shards import Shard

TYPES = {"fp16": "F16", "bf16": "BF16", "fp32": "F32", "fp64": "F64", "int8": "I8", "uint8": "U8"}


class Format(OneFileAShard):
    """One file a shard, its name ending in .safetensors."""

    def layout(self, shard: Shard) -> FileLayout:
        """Return where everything is in one shard's file."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for tensor in shard.tensors:
            offsets = [at, at := at + tensor.bytes]
            header[tensor.name] = {"dtype": TYPES[tensor.dtype], "shape": tensor.shape, "data_offsets": offsets}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        pieces = Pieces()
        pieces.literal(struct.pack("<Q", len(text)) + text)
        for tensor in shard.tensors:
            pieces.tensor(tensor)
        return pieces.layout(f"{shard.path.removesuffix('.pt')}.safetensors")
