"""Format `distcp`, PyTorch's distributed checkpoint: a file `__RANK_0.distcp` per rank, and one `.metadata`.

A rank's file is a sequence of archives, one per tensor, each as `torch.save` writes it. `.metadata`, a pickle of
torch.distributed.checkpoint.metadata.Metadata, maps each piece of each whole tensor to its file and offset, so that
any number of ranks can load the checkpoint. If several ranks have the same piece, the first of them writes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any

from dlemu.checkpoints.checkpoint_plan import CheckpointFormat, CheckpointPlan
from dlemu.checkpoints.formats._torch_zip import Archive, Call, Global, archive_of, pickled, rebuilt_tensor
from dlemu.checkpoints.shards import FileLayout, LayoutBuilder, Shard, Tensor
from dlemu.config.schema import Datatype

METADATA = "torch.distributed.checkpoint.metadata"
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "int8": "int8", "uint8": "uint8"}


class Format(CheckpointFormat):
    """One file per rank; `.metadata` covers the emulated ranks of the plan."""

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        pieces = LayoutBuilder()
        for shard, tensor in _tensors_of(plan, rank):
            _archive(tensor).append_to(pieces, (tensor,), f"{shard.path} {tensor.name}")
        files = [pieces.layout(_file_name(rank))]
        if rank == plan.ranks[0]:
            files.append(LayoutBuilder(head=pickled(_metadata(plan))).layout(".metadata"))
        return tuple(file for file in files if file.size_bytes)


def _archive(tensor: Tensor) -> Archive:
    return archive_of(_state, (("", tensor.shape, tensor.dtype),))


def _state(tensors: tuple[Tensor, ...]) -> Call:
    return rebuilt_tensor(tensors[0], 0)


def _tensors_of(plan: CheckpointPlan, rank: int) -> Iterator[tuple[Shard, Tensor]]:
    """Yield the tensors of a rank's file, in order, each with its shard."""
    for shard in plan.shards(rank):
        yield from ((shard, tensor) for tensor in shard.tensors if not tensor.part.copy)


def _file_name(rank: int) -> str:
    return f"__{rank}_0.distcp"


def _metadata(plan: CheckpointPlan) -> Call:
    """Return the content of `.metadata`: for each whole tensor its pieces (chunks), and where each is stored."""
    tensors: dict[str, Tensor] = {}  # the first piece of each tensor, by the tensor's name
    chunks: dict[str, list[Call]] = {}
    storage: dict[Call, Call] = {}

    @cache
    def archive_bytes(shape: tuple[int, ...], dtype: Datatype) -> int:
        layout = LayoutBuilder()
        tensor = Tensor("", shape, dtype)
        _archive(tensor).append_to(layout, (tensor,), "")
        return layout.size_bytes

    for rank in plan.ranks:
        file_offset = 0
        for _, tensor in _tensors_of(plan, rank):
            name, elements, length = tensor.part.name, tensor.shape[0], archive_bytes(tensor.shape, tensor.dtype)
            offset = _size(tensor.part.piece * elements)
            tensors.setdefault(name, tensor)
            pieces = chunks.setdefault(name, [])
            index = _instance(METADATA, "MetadataIndex", fqn=name, index=len(pieces), offset=offset)
            location = {"relative_path": _file_name(rank), "offset": file_offset, "length": length}
            storage[index] = _instance("torch.distributed.checkpoint.filesystem", "_StorageInfo", **location)
            pieces.append(_instance(METADATA, "ChunkStorageMetadata", offsets=offset, sizes=_size(elements)))
            file_offset += length
    return _instance(
        METADATA,
        "Metadata",
        state_dict_metadata={
            name: _instance(
                METADATA,
                "TensorStorageMetadata",
                properties=_properties(tensor),
                size=_size(tensor.shape[0] * tensor.part.pieces),
                chunks=chunks[name],
            )
            for name, tensor in tensors.items()
        },
        planner_data={name: (name,) for name in tensors},
        storage_data=storage,
        storage_meta=_instance(
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


def _instance(module: str, name: str, **fields: Any) -> Call:
    """Return an instance of a dataclass, pickled as `__new__` without arguments and then its fields."""
    return Call(Global(module, name), (), fields, new=True)
