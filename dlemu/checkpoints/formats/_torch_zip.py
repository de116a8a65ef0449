"""The layout of the zip archive that `torch.save` writes, and of the pickles in it, byte by byte, without PyTorch.

Pickles have protocol 2 and the same opcodes as CPython's pickler, so that they have the same size as PyTorch's.
Records are uncompressed and aligned to 64 bytes by an extra field `FB` filled with Zs. Sizes follow each record in a
data descriptor, and the end is always zip64. All sizes equal those of PyTorch's writer (caffe2/serialize with miniz).
Tensors have the checksum 0, because their content is generated only when the file is written. PyTorch, too, writes no
true ones with `set_crc32_options(False)`; `torch.load` ignores them, but `unzip -t` does not.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Any

from dlemu.checkpoints.shards import LayoutBuilder, Tensor
from dlemu.config.schema import Datatype

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
Shape = tuple[str, tuple[int, ...], Datatype]  # name, shape and type of a tensor


@lru_cache(256)
def archive_of(state: Callable[[tuple[Tensor, ...]], Any], shapes: tuple[Shape, ...]) -> Archive:
    """Return an archive of `state(tensors)` without a serialization id; cached, as all ranks have such tensors."""
    tensors = tuple(Tensor(*shape) for shape in shapes)
    return Archive(pickled(state(tensors)), tensors)


class Archive:
    """An archive: a pickle, then tensors, then the directory."""

    def __init__(self, state_pickle: bytes, tensors: tuple[Tensor, ...]) -> None:
        self._chunks: list[bytes | None] = []  # the bytes in order, with None in place of each tensor's bytes
        self._entries: list[bytes] = []  # of the directory at the end
        self._size = 0
        self._add("data.pkl", state_pickle)
        self._add(".format_version", b"1")
        self._add(".storage_alignment", str(ALIGNMENT).encode())
        self._add("byteorder", b"little")
        for number, tensor in enumerate(tensors):
            self._add(f"data/{number}", tensor)

    def append_to(self, pieces: LayoutBuilder, tensors: tuple[Tensor, ...], name: str) -> None:
        """Append the archive's bytes with these tensors, and a serialization id made from `name`, unlike any other."""
        archive = copy.copy(self)
        archive._chunks, archive._entries = self._chunks.copy(), self._entries.copy()
        archive._add("version", b"3\n")
        digits = int.from_bytes(hashlib.sha256(name.encode()).digest()) % 10**40
        archive._add(".data/serialization_id", f"{digits:040}".encode())
        archive._end()
        next_tensor = iter(tensors)
        for chunk in archive._chunks:
            if chunk is None:
                pieces.tensor(next(next_tensor))
            else:
                pieces.literal(chunk)

    def _add(self, name: str, content: bytes | Tensor) -> None:
        """Add a record: local header, content and data descriptor, and its entry of the directory."""
        path, offset = f"archive/{name}".encode(), self._size
        size, checksum = (content.bytes, 0) if isinstance(content, Tensor) else (len(content), zlib.crc32(content))
        extra = _zip64(size, 0, offset)  # PyTorch writes the header before the record, so the stored size is still 0
        # As in PyTorch's getPadding: 30 bytes of local header, and 4 of the extra field's own header.
        padding = -(offset + 30 + len(path) + 4 + len(extra)) % ALIGNMENT
        extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding
        self._put(struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 0, _FLAGS, *[0] * 6, len(path), len(extra)) + path + extra)
        if isinstance(content, Tensor):
            self._chunks.append(None)
            self._size += size
        else:
            self._put(content)
        sizes = "QQ" if max(size, offset) >= _LARGE else "II"
        self._put(struct.pack(f"<4sI{sizes}", b"PK\7\x08", checksum, size, size))
        extra, size_field = _zip64(size, size, offset), min(size, _LARGE)
        head = struct.pack("<4sHHHHHHIII", b"PK\1\2", 0, 0, _FLAGS, 0, 0, 0, checksum, size_field, size_field)
        lengths = struct.pack("<HHHHHII", len(path), len(extra), 0, 0, 0, 0, min(offset, _LARGE))
        self._entries.append(head + lengths + path + extra)

    def _end(self) -> None:
        """Append the central directory and the end records that point to it."""
        start, count = self._size, len(self._entries)
        self._put(b"".join(self._entries))
        end, size = self._size, self._size - start
        count16, size32, start32 = min(count, 0xFFFF), min(size, _LARGE), min(start, _LARGE)
        self._put(
            struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, size, start)
            + struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
            + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count16, count16, size32, start32, 0)
        )

    def _put(self, data: bytes) -> None:
        """Append bytes, to the last chunk unless that is a tensor."""
        last = self._chunks[-1] if self._chunks else None
        if last is None:
            self._chunks.append(data)
        else:
            self._chunks[-1] = last + data
        self._size += len(data)


def torch_state(tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    """Return the nested dictionaries of the tensors' dotted names, with tensors as `torch.save` pickles them."""
    state: dict[str, Any] = {}
    for number, tensor in enumerate(tensors):
        *keys, last_key = tensor.name.split(".")
        inner = state
        for key in keys:
            inner = inner.setdefault(DistinctStr(key), {})  # DLIO makes each key a new string, from a number
        inner[DistinctStr(last_key)] = rebuilt_tensor(tensor, number)
    return state


def rebuilt_tensor(tensor: Tensor, number: int) -> Call:
    """Return the pickled call that rebuilds a contiguous tensor from the archive's storage `number`."""
    *strides, elements = accumulate(reversed(tensor.shape), mul, initial=1)  # the strides from the last axis on
    storage = ("storage", Global("torch", STORAGES[tensor.dtype]), DistinctStr(number), "cpu", elements)
    hooks = Call(Global("collections", "OrderedDict"))
    return Call(
        Global("torch._utils", "_rebuild_tensor_v2"),
        (Persistent(storage), 0, tensor.shape, tuple(reversed(strides)), False, hooks),
    )


def _zip64(size: int, stored_bytes: int, offset: int) -> bytes:
    """Return the zip64 extra field with the numbers that do not fit in 32 bits; b'' if all do."""
    numbers = [size, stored_bytes] if size >= _LARGE else []
    if offset >= _LARGE:
        numbers.append(offset)
    return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""


_BATCH = 1000  # maximum items per SETITEMS or APPENDS opcode, as in CPython's pickler


@dataclass(frozen=True)
class Global:
    """A reference to a class or function by its module and name."""

    module: str
    name: str


@dataclass(frozen=True, eq=False)
class Call:
    """An object made by `function(*args)`, or with `new` by `cls.__new__(cls, *args)`; then its state is set."""

    function: Global
    args: tuple[Any, ...] = ()
    state: Any = None
    new: bool = False


@dataclass(frozen=True)
class Persistent:
    """An object that the unpickler looks up by a key (BINPERSID): PyTorch's storages."""

    key: tuple[Any, ...]


class DistinctStr(str):
    """A string that is written in full even if an equal one was written before, as pickle does for distinct objects."""


def pickled(value: Any) -> bytes:
    """Return the pickle of a value made of None, numbers, strings, tuples, lists, dicts and the classes above."""
    writer = _Writer()
    writer.save(value)
    return b"\x80\x02" + b"".join(writer.out) + b"."


class _Writer:
    """Appends opcodes of the pickle machine to `out` (CPython's Lib/pickletools.py explains each)."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self._memo: dict[str | Global, int] = {}
        """Memo number of each string and class that was written; an equal one is written as that number."""
        self._memo_size = 0  # of all values in the pickle machine's memo: tuples, dicts and lists, too

    def save(self, value: Any) -> None:
        match value:
            case Persistent():
                self.save(value.key)
                self.out.append(b"Q")
            case Call():
                self.save(value.function)
                self.save(value.args)
                self._memoize(b"\x81" if value.new else b"R")
                if value.state is not None:
                    self.save(value.state)
                    self.out.append(b"b")
            case str() | Global():
                self._save_shared(value)
            case ():
                self.out.append(b")")
            case tuple():
                self._save_all(value, b"(" if len(value) > 3 else b"")
                self._memoize({1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(value), b"t"))
            case dict():
                self._memoize(b"}")
                keys_and_values = [part for item in value.items() for part in item]
                self._save_items(keys_and_values, 2, b"s", b"u")
            case list():
                self._memoize(b"]")
                self._save_items(value, 1, b"a", b"e")
            case _:
                self.out.append(pickle.dumps(value, protocol=2)[2:-1])

    def _memoize(self, opcode: bytes) -> None:
        """Write the opcode that makes a value, and the one that stores the value in the memo (BINPUT, LONG_BINPUT)."""
        number = self._memo_size
        self.out.append(opcode + (b"q%c" % number if number < 256 else b"r" + struct.pack("<I", number)))
        self._memo_size += 1

    def _save_shared(self, value: str | Global) -> None:
        """Write a string or class, or if it was written before, its number in the memo (BINGET, LONG_BINGET)."""
        number = None if isinstance(value, DistinctStr) else self._memo.get(value)
        if number is not None:
            self.out.append(b"h%c" % number if number < 256 else b"j" + struct.pack("<I", number))
            return
        if not isinstance(value, DistinctStr):
            self._memo[value] = self._memo_size
        if isinstance(value, Global):
            self._memoize(f"c{value.module}\n{value.name}\n".encode())
        else:
            text = value.encode()
            self._memoize(b"X" + struct.pack("<I", len(text)) + text)

    def _save_all(self, values: Any, mark: bytes) -> None:
        self.out.append(mark)
        for value in values:
            self.save(value)

    def _save_items(self, values: list[Any], item_size: int, opcode: bytes, batch_opcode: bytes) -> None:
        """Write the items of a dict or list, of `item_size` values each, by `opcode` if there is one item only."""
        is_single = len(values) <= item_size
        for start in range(0, len(values), _BATCH * item_size):
            self._save_all(values[start : start + _BATCH * item_size], b"" if is_single else b"(")
            self.out.append(opcode if is_single else batch_opcode)
