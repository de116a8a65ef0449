"""PyTorch's distributed checkpoint: one file a rank, `__RANK_0.distcp`, and `.metadata` by rank 0.

Each tensor is an archive of its own, as `torch.save` writes it, one after another in the rank's file; `.metadata` is a
pickle of torch.distributed.checkpoint.metadata.Metadata that says which piece of which whole tensor lies where, so that
any other number of ranks can read it. A piece that several ranks hold is written by the first of them.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from dlemu.checkpoints.formats._pickled import Call, Global, Mapped, pickled
from dlemu.checkpoints.formats._torch_zip import TorchZip, rebuilt_tensor
from dlemu.checkpoints.formats.checkpoint_format_base import FileLayout, Pieces
from dlemu.checkpoints.shards import Tensor

if TYPE_CHECKING:
    from dlemu.checkpoints.checkpoint_plan import CheckpointPlan

METADATA = "torch.distributed.checkpoint.metadata"
DTYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "int8": "int8",
    "uint8": "uint8",
}


class Format:
    """One file a rank; `.metadata` knows the ranks that take part in the plan."""

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        """Return the rank's file, and of the first rank that takes part `.metadata` after it."""
        files = [_file(plan, rank)[0]]
        if rank == plan.ranks[0]:
            pieces = Pieces()
            pieces.literal(pickled(_metadata(plan)))
            files.append(pieces.layout(".metadata"))
        return tuple(file for file in files if file.size_bytes)


def _file(plan: CheckpointPlan, rank: int) -> tuple[FileLayout, list[tuple[Tensor, int, int]]]:
    """Return a rank's file, and of each tensor in it where its archive begins and how long that is."""
    pieces = Pieces()
    places = []
    for shard in plan.shards(rank):
        for tensor in shard.tensors:
            if tensor.part.copy:
                continue
            start = pieces.size_bytes
            TorchZip(pieces).state(rebuilt_tensor(tensor, 0), (tensor,), f"{shard.path} {tensor.name}")
            places.append((tensor, start, pieces.size_bytes - start))
    return pieces.layout(_name(rank)), places


def _name(rank: int) -> str:
    return f"__{rank}_0.distcp"


def _metadata(plan: CheckpointPlan) -> Call:
    tensors: dict[str, Tensor] = {}
    chunks: dict[str, list[Call]] = {}
    storage: list[tuple[Call, Call]] = []
    for rank in plan.ranks:
        for tensor, start, length in _file(plan, rank)[1]:
            name, elements = tensor.part.name, tensor.shape[0]
            offset = _size(tensor.part.piece * elements)
            own = chunks.setdefault(name, [])
            tensors.setdefault(name, tensor)
            index = _made(METADATA, "MetadataIndex", fqn=name, index=len(own), offset=offset)
            place = {"relative_path": _name(rank), "offset": start, "length": length}
            storage.append((index, _made("torch.distributed.checkpoint.filesystem", "_StorageInfo", **place)))
            own.append(_made(METADATA, "ChunkStorageMetadata", offsets=offset, sizes=_size(elements)))
    return _made(
        METADATA,
        "Metadata",
        state_dict_metadata={
            name: _made(
                METADATA,
                "TensorStorageMetadata",
                properties=_properties(tensor),
                size=_size(tensor.shape[0] * tensor.part.pieces),
                chunks=chunks[name],
            )
            for name, tensor in tensors.items()
        },
        planner_data={name: (name,) for name in tensors},
        storage_data=Mapped(storage),
        storage_meta=_made(
            METADATA, "StorageMeta", checkpoint_id=None, save_id=str(uuid.uuid5(uuid.NAMESPACE_OID, repr(plan)))
        ),
        version="1.0.0",
    )


def _properties(tensor: Tensor) -> Call:
    strided = Call(Global("torch.serialization", "_get_layout"), ("torch.strided",))
    contiguous = Call(Global(METADATA, "_MEM_FORMAT_ENCODING"), (0,))
    state = (Global("torch", DTYPES[tensor.dtype]), strided, False, contiguous, False)
    return Call(Global(METADATA, "TensorProperties"), (), state, new=True)


def _size(*sizes: int) -> Call:
    return Call(Global("torch", "Size"), (sizes,))


def _made(module: str, name: str, **fields: Any) -> Call:
    """Return an instance of a dataclass, which is made without its constructor and then given its fields."""
    return Call(Global(module, name), (), fields, new=True)
