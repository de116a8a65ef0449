"""The zip archive that `torch.save` writes, byte by byte, without PyTorch.

Its records are stored uncompressed, each aligned to 64 bytes by a field `FB` of Zs; every size stands behind its record
(a data descriptor), and the end is always zip64's. Sizes are those of PyTorch's writer (caffe2/serialize with miniz).
Checksums of tensors are 0, as PyTorch writes no true ones with `set_crc32_options(False)`, for their content is made
when the file is written: `torch.load` does not look at them, `unzip -t` does.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlemu.checkpoints.file_layout import Pieces
from dlemu.checkpoints.formats._pickled import Call, Fresh, Global, Persistent, pickled
from dlemu.checkpoints.shards import Tensor

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
"""Names are UTF-8; sizes are in the data descriptor."""


@dataclass(frozen=True)
class _Record:
    name: bytes
    offset: int
    size: int
    checksum: int

    def is_large(self) -> bool:
        return self.size >= _LARGE or self.offset >= _LARGE

    def zip64(self, stored_bytes: int) -> bytes:
        """Return the extra field with the numbers that do not fit 32 bits; nothing where all do."""
        numbers = [self.size, stored_bytes] if self.size >= _LARGE else []
        numbers += [self.offset] if self.offset >= _LARGE else []
        return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""


class TorchZips:
    """Adds archives to files. All that archives of like tensors share is made once, for however many ranks."""

    def __init__(self) -> None:
        self._begun: dict[tuple[tuple[str, tuple[int, ...], str], ...], _Archive] = {}

    def add(
        self, pieces: Pieces, tensors: tuple[Tensor, ...], state: Callable[[tuple[Tensor, ...]], Any], name: str
    ) -> None:
        """Add what `torch.save` writes of the tensors' state: its pickle, then the tensors, then the end.

        `name` distinguishes archives in the id that each has.
        """
        kind = tuple((tensor.name, tensor.shape, tensor.dtype) for tensor in tensors)
        if kind not in self._begun:
            self._begun[kind] = _begun(state(tensors), tensors)
        archive = self._begun[kind].copied()
        archive.add("version", b"3\n")
        archive.add(".data/serialization_id", _digits(name).encode())
        archive.end()
        following = iter(tensors)
        for chunk in archive.chunks:
            if chunk is None:
                pieces.tensor(next(following))
            else:
                pieces.literal(chunk)


def _begun(state: Any, tensors: tuple[Tensor, ...]) -> _Archive:
    """Return an archive up to what names it."""
    archive = _Archive()
    archive.add("data.pkl", pickled(state))
    archive.add(".format_version", b"1")
    archive.add(".storage_alignment", str(ALIGNMENT).encode())
    archive.add("byteorder", b"little")
    for number, tensor in enumerate(tensors):
        archive.add(f"data/{number}", tensor)
    return archive


class _Archive:
    """One archive as it grows."""

    def __init__(self) -> None:
        self.chunks: list[bytes | None] = []
        """Its bytes, in order; None stands for a tensor's."""
        self._entries: list[bytes] = []
        """Of the directory at its end."""
        self._size = 0

    def copied(self) -> _Archive:
        """Return one that grows by itself."""
        other = _Archive()
        other.chunks, other._entries, other._size = self.chunks.copy(), self._entries.copy(), self._size
        return other

    def add(self, name: str, content: bytes | Tensor) -> None:
        """Add a record."""
        size = content.bytes if isinstance(content, Tensor) else len(content)
        checksum = 0 if isinstance(content, Tensor) else zlib.crc32(content)
        record = _Record(f"archive/{name}".encode(), self._size, size, checksum)
        zip64 = record.zip64(stored_bytes=0)  # not known before the record is written, as PyTorch sees it
        # The numbers of PyTorch's getPadding: the field of Zs has a head of 4 bytes, which is not padding.
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
        """Add the directory and what says where it is."""
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
    """Return the nested dictionaries that the tensors' names show, with tensors as `torch.save` pickles them."""
    state: dict[str, Any] = {}
    for number, tensor in enumerate(tensors):
        *above, last = tensor.name.split(".")
        inner = state
        for key in above:
            inner = inner.setdefault(Fresh(key), {})  # DLIO makes each key anew, from a number
        inner[Fresh(last)] = rebuilt_tensor(tensor, number)
    return state


def rebuilt_tensor(tensor: Tensor, number: int) -> Call:
    """Return the call that makes a contiguous tensor of the archive's storage of that number."""
    elements = 1
    strides: list[int] = []
    for size in reversed(tensor.shape):
        strides.insert(0, elements)
        elements *= size
    storage = ("storage", Global("torch", STORAGES[tensor.dtype]), Fresh(number), "cpu", elements)
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


def _digits(name: str) -> str:
    """Return forty digits that a name gives."""
    return f"{int.from_bytes(hashlib.sha256(name.encode()).digest()) % 10**40:040}"
