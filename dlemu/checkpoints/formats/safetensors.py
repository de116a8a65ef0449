"""Format `safetensors`: a JSON header with each tensor's name, type, shape and offsets, then the tensors' bytes.

https://github.com/huggingface/safetensors: the header's length in 8 bytes (little-endian), the header, padded with
spaces to a multiple of 8 bytes, and the tensors without gaps.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from dlemu.checkpoints.checkpoint_plan import CheckpointFormat
from dlemu.checkpoints.shards import FileLayout, Shard, file_layout

TYPES = {"fp16": "F16", "bf16": "BF16", "fp32": "F32", "fp64": "F64", "int8": "I8", "uint8": "U8"}


class Format(CheckpointFormat):
    """One .safetensors file per shard."""

    def layout(self, shard: Shard) -> FileLayout:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        start = 0
        for tensor in shard.tensors:
            end = start + tensor.bytes
            header[tensor.name] = {"dtype": TYPES[tensor.dtype], "shape": tensor.shape, "data_offsets": [start, end]}
            start = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        path = f"{shard.path.removesuffix('.pt')}.safetensors"
        return file_layout(path, [struct.pack("<Q", len(text)) + text, *shard.tensors])
