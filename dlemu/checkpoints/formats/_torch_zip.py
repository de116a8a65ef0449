"""The layout of the zip archive that `torch.save` writes, byte by byte, without PyTorch.

Records are uncompressed and aligned to 64 bytes by an extra field `FB` filled with Zs. Sizes follow each record in a
data descriptor, and the end is always zip64. All sizes equal those of PyTorch's writer (caffe2/serialize with miniz).
Tensors have the checksum 0, because their content is generated only when the file is written. PyTorch, too, writes no
true ones with `set_crc32_options(False)`; `torch.load` ignores them, but `unzip -t` does not.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlemu.checkpoints.formats._pickled import Call, DistinctStr, Global, Persistent, pickled
from dlemu.checkpoints.shards import LayoutBuilder, Tensor

STORAGES = {
    "fp16": "HalfStorage",
    "bf16": "BFloat16Storage",
    "fp32": "FloatStorage",
    "fp64": "DoubleStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
}
ALIGNMENT = 64  # torch.save starts each tensor at a multiple of 64 (inline_container.cc, kFieldAlignment)
_LARGE = 0xFFFFFFFF  # from here on a zip needs its zip64 fields (APPNOTE 4.3.9)
_FLAGS = 0x0808
"""Zip flags: names are UTF-8 (bit 11), and sizes are in the data descriptor (bit 3)."""


@dataclass(frozen=True)
class _Record:
    name: bytes
    offset: int
    size: int
    checksum: int

    def is_large(self) -> bool:
        return self.size >= _LARGE or self.offset >= _LARGE

    def zip64(self, stored_bytes: int) -> bytes:
        """Return the zip64 extra field with the numbers that do not fit in 32 bits; b'' if all do."""
        numbers = [self.size, stored_bytes] if self.size >= _LARGE else []
        numbers += [self.offset] if self.offset >= _LARGE else []
        return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""


class TorchZips:
    """Appends archives to layouts. What archives of equal tensors share is computed once, for any number of ranks."""

    def __init__(self) -> None:
        self._without_name: dict[tuple[tuple[str, tuple[int, ...], str], ...], _Archive] = {}

    def add(
        self, pieces: LayoutBuilder, tensors: tuple[Tensor, ...], state: Callable[[tuple[Tensor, ...]], Any], name: str
    ) -> None:
        """Append the archive of `state(tensors)`: its pickle, then the tensors, then the directory.

        `name` distinguishes the archive's serialization_id from those of others.
        """
        kind = tuple((tensor.name, tensor.shape, tensor.dtype) for tensor in tensors)
        if kind not in self._without_name:
            self._without_name[kind] = _without_name(state(tensors), tensors)
        archive = self._without_name[kind].copy()
        archive.add("version", b"3\n")
        archive.add(".data/serialization_id", _hash_digits(name).encode())
        archive.end()
        following = iter(tensors)
        for chunk in archive.chunks:
            if chunk is None:
                pieces.tensor(next(following))
            else:
                pieces.literal(chunk)


def _without_name(state: Any, tensors: tuple[Tensor, ...]) -> _Archive:
    """Return an archive with all records that do not depend on its name."""
    archive = _Archive()
    archive.add("data.pkl", pickled(state))
    archive.add(".format_version", b"1")
    archive.add(".storage_alignment", str(ALIGNMENT).encode())
    archive.add("byteorder", b"little")
    for number, tensor in enumerate(tensors):
        archive.add(f"data/{number}", tensor)
    return archive


class _Archive:
    """An archive being laid out."""

    def __init__(self) -> None:
        self.chunks: list[bytes | None] = []
        """Its bytes in order, with None in place of each tensor's bytes."""
        self._entries: list[bytes] = []
        """Entries of the directory at its end."""
        self._size = 0

    def copy(self) -> _Archive:
        """Return an independent copy."""
        other = _Archive()
        other.chunks, other._entries, other._size = self.chunks.copy(), self._entries.copy(), self._size
        return other

    def add(self, name: str, content: bytes | Tensor) -> None:
        """Add a record."""
        size = content.bytes if isinstance(content, Tensor) else len(content)
        checksum = 0 if isinstance(content, Tensor) else zlib.crc32(content)
        record = _Record(f"archive/{name}".encode(), self._size, size, checksum)
        zip64 = record.zip64(stored_bytes=0)  # not known before the record is written, as PyTorch sees it
        # As in PyTorch's getPadding: 30 bytes of local header, and 4 of the extra field's own header.
        padding = -(self._size + 30 + len(record.name) + 4 + len(zip64)) % ALIGNMENT
        extra = zip64 + b"FB" + struct.pack("<H", padding) + b"Z" * padding
        lengths = (len(record.name), len(extra))
        head = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 0, _FLAGS, 0, 0, 0, 0, 0, 0, *lengths)
        self._put(head + record.name + extra)
        if isinstance(content, Tensor):
            self.chunks.append(None)
            self._size += size
        else:
            self._put(content)
        sizes = struct.pack("<QQ" if record.is_large() else "<II", size, size)
        self._put(b"PK\7\x08" + struct.pack("<I", checksum) + sizes)
        self._entries.append(_entry(record))

    def end(self) -> None:
        """Append the central directory and the end records that point to it."""
        directory, count = self._size, len(self._entries)
        self._put(b"".join(self._entries))
        end, size = self._size, self._size - directory
        self._put(
            struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, size, directory)
            + struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
            + struct.pack(
                "<4sHHHHIIH", b"PK\5\6", 0, 0, *(2 * [min(count, 0xFFFF)]), min(size, _LARGE), min(directory, _LARGE), 0
            )
        )

    def _put(self, data: bytes) -> None:
        last = self.chunks[-1] if self.chunks else None
        if last is None:
            self.chunks.append(data)
        else:
            self.chunks[-1] = last + data
        self._size += len(data)


def torch_state(tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    """Return the nested dictionaries of the tensors' dotted names, with tensors as `torch.save` pickles them."""
    state: dict[str, Any] = {}
    for number, tensor in enumerate(tensors):
        *above, last = tensor.name.split(".")
        inner = state
        for key in above:
            inner = inner.setdefault(DistinctStr(key), {})  # DLIO makes each key a new string, from a number
        inner[DistinctStr(last)] = rebuilt_tensor(tensor, number)
    return state


def rebuilt_tensor(tensor: Tensor, number: int) -> Call:
    """Return the pickled call that rebuilds a contiguous tensor from the archive's storage `number`."""
    elements = 1
    strides: list[int] = []
    for size in reversed(tensor.shape):
        strides.insert(0, elements)
        elements *= size
    storage = ("storage", Global("torch", STORAGES[tensor.dtype]), DistinctStr(number), "cpu", elements)
    hooks = Call(Global("collections", "OrderedDict"), ())
    return Call(
        Global("torch._utils", "_rebuild_tensor_v2"),
        (Persistent(storage), 0, tensor.shape, tuple(strides), False, hooks),
    )


def _entry(record: _Record) -> bytes:
    zip64 = record.zip64(record.size)
    size = _LARGE if record.size >= _LARGE else record.size
    head = struct.pack("<4sHHHHHHIII", b"PK\1\2", 0, 0, _FLAGS, 0, 0, 0, record.checksum, size, size)
    lengths = struct.pack("<HHHHHI", len(record.name), len(zip64), 0, 0, 0, 0)
    return head + lengths + struct.pack("<I", min(record.offset, _LARGE)) + record.name + zip64


def _hash_digits(name: str) -> str:
    """Return a 40-digit hash of a name."""
    return f"{int.from_bytes(hashlib.sha256(name.encode()).digest()) % 10**40:040}"
