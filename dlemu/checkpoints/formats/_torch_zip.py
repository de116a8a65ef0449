"""Makes the zip archives of `torch.save`, and the pickles in them, byte by byte and without PyTorch.

Pickles have protocol 2 and come from CPython's pickler, as PyTorch's do, so that sizes are equal. Records are not
compressed; an extra field `FB` filled with Zs aligns them to 64 bytes. Sizes follow each record in a data descriptor,
and the end is always zip64. All sizes equal those of PyTorch's writer (caffe2/serialize with miniz).
Tensors have the checksum 0, because their content is generated only when the file is written. PyTorch, too, writes no
real checksums with `set_crc32_options(False)`; `torch.load` ignores them, but `unzip -t` does not.
"""

from __future__ import annotations

import copy
import hashlib
import io
import pickle
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from operator import mul
from typing import Any

from dlemu.checkpoints.shards import Tensor
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
_FLAGS = 0x0808  # zip flags: names are UTF-8 (bit 11), and sizes are in the data descriptor (bit 3)
Shape = tuple[str, tuple[int, ...], Datatype]  # name, shape and type of a tensor


@lru_cache(256)
def archive_of(state: Callable[[tuple[Tensor, ...]], Any], shapes: tuple[Shape, ...]) -> Archive:
    """Return an archive of `state(tensors)` without its last records; cached, because ranks have equal shapes."""
    tensors = tuple(Tensor(*shape) for shape in shapes)
    return Archive(pickle_bytes(state(tensors)), tensors)


class Archive:
    """A zip archive of a pickle and tensors; `contents` adds the two last records and the central directory."""

    def __init__(self, state_pickle: bytes, tensors: tuple[Tensor, ...]) -> None:
        self._prefixes: list[bytes] = []  # the bytes before each tensor
        self._tail = b""  # the bytes after the last tensor
        self._size = 0
        self._entries: list[bytes] = []  # of the central directory
        self._add("data.pkl", state_pickle)
        self._add(".format_version", b"1")
        self._add(".storage_alignment", str(ALIGNMENT).encode())
        self._add("byteorder", b"little")
        for number, tensor in enumerate(tensors):
            self._add(f"data/{number}", tensor)

    def contents(self, tensors: tuple[Tensor, ...], name: str) -> Iterator[bytes | Tensor]:
        """Yield the archive's bytes with these tensors, and with a serialization id hashed from the unique `name`."""
        archive = copy.copy(self)
        archive._entries = self._entries.copy()
        archive._add("version", b"3\n")
        digits = int.from_bytes(hashlib.sha256(name.encode()).digest()) % 10**40
        archive._add(".data/serialization_id", f"{digits:040}".encode())
        for prefix, tensor in zip(self._prefixes, tensors, strict=True):
            yield prefix
            yield tensor
        yield archive._tail + archive._directory()

    def _add(self, name: str, content: bytes | Tensor) -> None:
        """Add a record: local header, content, data descriptor, and its entry in the central directory."""
        path = f"archive/{name}".encode()
        offset = self._size
        size, checksum = (content.bytes, 0) if isinstance(content, Tensor) else (len(content), zlib.crc32(content))
        extra = _zip64(size, 0, offset)  # PyTorch writes the header before the record, so the stored size is still 0
        # As in PyTorch's getPadding: 30 bytes of local header, and 4 of the extra field's own header.
        padding = -(offset + 30 + len(path) + 4 + len(extra)) % ALIGNMENT
        extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding
        header = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 0, _FLAGS, *[0] * 6, len(path), len(extra)) + path + extra
        self._tail += header
        if isinstance(content, Tensor):
            self._prefixes.append(self._tail)
            self._tail = b""
        else:
            self._tail += content
        sizes = "QQ" if max(size, offset) >= _LARGE else "II"  # 64 or 32 bits
        descriptor = struct.pack(f"<4sI{sizes}", b"PK\7\x08", checksum, size, size)  # APPNOTE 4.3.9
        self._tail += descriptor
        self._size += len(header) + size + len(descriptor)
        extra, size_field = _zip64(size, size, offset), min(size, _LARGE)
        head = struct.pack("<4sHHHHHHIII", b"PK\1\2", 0, 0, _FLAGS, 0, 0, 0, checksum, size_field, size_field)
        lengths = struct.pack("<HHHHHII", len(path), len(extra), 0, 0, 0, 0, min(offset, _LARGE))
        self._entries.append(head + lengths + path + extra)  # APPNOTE 4.3.12

    def _directory(self) -> bytes:
        """Return the central directory and the end records that point to it."""
        entries = b"".join(self._entries)
        count, size, start = len(self._entries), len(entries), self._size
        count16, size32, start32 = min(count, 0xFFFF), min(size, _LARGE), min(start, _LARGE)  # all ones: see zip64
        return (
            entries
            + struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, size, start)
            + struct.pack("<4sIQI", b"PK\6\7", 0, start + size, 1)
            + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count16, count16, size32, start32, 0)
        )


def _zip64(size: int, stored_bytes: int, offset: int) -> bytes:
    """Return the zip64 extra field with the numbers that do not fit in 32 bits; b'' if all do."""
    numbers = [size, stored_bytes] if size >= _LARGE else []
    if offset >= _LARGE:
        numbers.append(offset)
    return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""


def torch_state(tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    """Return the state: nested dictionaries by the tensors' dotted names, with tensors as `torch.save` pickles them."""
    state: dict[str, Any] = {}
    for number, tensor in enumerate(tensors):
        *keys, last_key = tensor.name.split(".")
        inner = state
        for key in keys:
            inner = inner.setdefault(DistinctStr(key), {})  # DLIO makes a new string of a number for each key
        inner[DistinctStr(last_key)] = rebuild_call(tensor, number)
    return state


def rebuild_call(tensor: Tensor, number: int) -> Call:
    """Return the call by which a pickle rebuilds a contiguous tensor from the archive's storage `number`."""
    *strides, elements = accumulate(reversed(tensor.shape), mul, initial=1)  # strides begin with the last axis
    key = ("storage", global_ref("torch", STORAGES[tensor.dtype]), DistinctStr(number), "cpu", elements)
    hooks = Call(global_ref("collections", "OrderedDict"))
    shape = (*tensor.shape,)  # a new tuple: pickle would refer back to one that several tensors share
    args = (Persistent(key), 0, shape, (*reversed(strides),), False, hooks)
    return Call(global_ref("torch._utils", "_rebuild_tensor_v2"), args)


@dataclass(frozen=True)
class Global:
    """A class or function, by its module and name; made by `global_ref`."""

    module: str
    name: str


@cache
def global_ref(module: str, name: str) -> Global:
    """Return the one `Global` of that name: pickle writes an object in full once, and then refers back to it."""
    return Global(module, name)


@dataclass(frozen=True, eq=False)
class Call:
    """An object that unpickling makes by `function(*args)`, or with `new` by `__new__`; then it sets the state."""

    function: Global
    args: tuple[Any, ...] = ()
    state: Any = None
    new: bool = False


@dataclass(frozen=True)
class Persistent:
    """An object that the unpickler looks up by a key (BINPERSID), as PyTorch does with storages."""

    key: tuple[Any, ...]


class DistinctStr(str):
    """A string that pickle always writes in full: CPython shares single-character strings, a subclass is not shared."""


def pickle_bytes(value: Any) -> bytes:
    """Return the pickle of a value of None, numbers, strings, tuples, lists, dicts and the classes above."""
    out = io.BytesIO()
    _Pickler(out, protocol=2).dump(value)
    return out.getvalue()


def _save_global(pickler: Any, value: Global) -> None:
    pickler.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
    pickler.memoize(value)


def _save_call(pickler: Any, value: Call) -> None:
    pickler.save(value.function)
    pickler.save(value.args)
    pickler.write(pickle.NEWOBJ if value.new else pickle.REDUCE)
    pickler.memoize(value)
    if value.state is not None:
        pickler.save(value.state)
        pickler.write(pickle.BUILD)


class _Pickler(pickle._Pickler):
    """CPython's pickler in pure Python. Its table of types can be extended; the C pickler would import each Global."""

    dispatch = pickle._Pickler.dispatch | {
        Global: _save_global,
        Call: _save_call,
        DistinctStr: pickle._Pickler.dispatch[str],
    }

    def persistent_id(self, value: Any) -> Any:
        return value.key if isinstance(value, Persistent) else None
