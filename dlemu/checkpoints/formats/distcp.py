"""Format `distcp`, PyTorch's distributed checkpoint: a file `__RANK_0.distcp` per rank, and one `.metadata`.

A rank's file is a sequence of `torch.save` archives, one per tensor. `.metadata`, a pickle of
torch.distributed.checkpoint.metadata.Metadata, maps each piece of each whole tensor to a file and an offset, so that
any number of ranks can load the checkpoint. If several ranks have the same piece, the first of them writes it.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from itertools import chain
from typing import Any

from dlemu.checkpoints.checkpoint_plan import CheckpointFormat, CheckpointPlan
from dlemu.checkpoints.formats._torch_zip import Call, archive_of, global_ref, pickle_bytes, rebuild_call
from dlemu.checkpoints.shards import FileLayout, Tensor, file_layout

METADATA = "torch.distributed.checkpoint.metadata"
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "int8": "int8", "uint8": "uint8"}


class Format(CheckpointFormat):
    """One file per rank; `.metadata` covers the emulated ranks of the plan."""

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        archives = (_archive(tensor, name) for name, tensor in _tensors_of(plan, rank))
        files = [file_layout(_file_name(rank), chain.from_iterable(archives))]
        if rank == plan.ranks[0]:
            files.append(file_layout(".metadata", [pickle_bytes(_metadata(plan))]))
        return tuple(file for file in files if file.size_bytes)


def _tensors_of(plan: CheckpointPlan, rank: int) -> Iterator[tuple[str, Tensor]]:
    """Yield (unique name, tensor) of the tensors of a rank's file, in order."""
    for shard in plan.shards(rank):
        yield from ((f"{shard.path} {tensor.name}", tensor) for tensor in shard.tensors if not tensor.part.duplicate)


def _archive(tensor: Tensor, name: str) -> Iterator[bytes | Tensor]:
    return archive_of(_state, (("", tensor.shape, tensor.dtype),)).contents((tensor,), name)


def _state(tensors: tuple[Tensor, ...]) -> Call:
    return rebuild_call(tensors[0], 0)


def _file_name(rank: int) -> str:
    return f"__{rank}_0.distcp"


def _metadata(plan: CheckpointPlan) -> Call:
    """Return the content of `.metadata`: the pieces (chunks) of each whole tensor, and where each is stored."""
    tensors: dict[str, Tensor] = {}  # the first piece of each whole tensor, by name
    chunks: dict[str, list[Call]] = {}
    storage: dict[Call, Call] = {}
    archive_bytes: dict[object, int] = {}  # by the tensor's shape and type
    for rank in plan.ranks:
        path, file_offset = _file_name(rank), 0
        for _, tensor in _tensors_of(plan, rank):
            kind = tensor.shape, tensor.dtype
            if kind not in archive_bytes:
                archive_bytes[kind] = file_layout("", _archive(tensor, "")).size_bytes
            name, elements = sys.intern(tensor.part.name), tensor.shape[0]
            start = tensor.part.piece * elements
            tensors.setdefault(name, tensor)
            tensor_chunks = chunks.setdefault(name, [])
            index = _instance("MetadataIndex", fqn=name, index=len(tensor_chunks), offset=_size(start))
            location = {"relative_path": path, "offset": file_offset, "length": archive_bytes[kind]}
            storage[index] = _instance("_StorageInfo", "torch.distributed.checkpoint.filesystem", **location)
            tensor_chunks.append(_instance("ChunkStorageMetadata", offsets=_size(start), sizes=_size(elements)))
            file_offset += archive_bytes[kind]
    metadata = {}
    for name, tensor in tensors.items():
        size, properties = _size(tensor.shape[0] * tensor.part.pieces), _properties(tensor)
        metadata[name] = _instance("TensorStorageMetadata", properties=properties, size=size, chunks=chunks[name])
    save_id = str(uuid.uuid5(uuid.NAMESPACE_OID, repr(plan)))
    return _instance(
        "Metadata",
        state_dict_metadata=metadata,
        planner_data={name: (name,) for name in tensors},
        storage_data=storage,
        storage_meta=_instance("StorageMeta", checkpoint_id=None, save_id=save_id),
        version="1.0.0",
    )


def _properties(tensor: Tensor) -> Call:
    strided = _call("torch.serialization", "_get_layout", "torch.strided")
    contiguous = _call(METADATA, "_MEM_FORMAT_ENCODING", 0)
    state = (global_ref("torch", DTYPES[tensor.dtype]), strided, False, contiguous, False)
    return Call(global_ref(METADATA, "TensorProperties"), (), state, new=True)


def _size(*sizes: int) -> Call:
    return _call("torch", "Size", sizes)


def _call(module: str, name: str, *args: Any) -> Call:
    """Return a call with a new tuple of arguments: pickle would write a shared one only once, and refer back to it."""
    return Call(global_ref(module, name), args)


def _instance(name: str, module: str = METADATA, /, **fields: Any) -> Call:
    """Return an instance of a dataclass, pickled as `__new__` without arguments and then its fields."""
    return Call(global_ref(module, name), (), fields, new=True)
