"""A pickler for objects of classes that are not imported, so that PyTorch's pickles can be made without PyTorch.

Protocol 2, with the same opcodes as CPython's pickler, so that files have the same size as PyTorch's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

_BATCH = 1000
"""Maximum items per SETITEMS or APPENDS opcode, as in CPython's pickler."""


@dataclass(frozen=True)
class Global:
    """A reference to a class or function by its module and name."""

    module: str
    name: str


@dataclass(frozen=True)
class Call:
    """The result of `function(*args)`, or with `new` of `cls.__new__(cls, *args)`; then its state is set."""

    function: Global
    args: tuple[Any, ...]
    state: Any = None
    new: bool = False


@dataclass(frozen=True)
class Persistent:
    """An object that the unpickler looks up by a key (BINPERSID): PyTorch's storages."""

    key: tuple[Any, ...]


@dataclass(frozen=True)
class MappedPairs:
    """A dictionary as (key, value) pairs, for keys that can't be hashed here, such as a `Call`."""

    items: list[tuple[Any, Any]]


class DistinctStr(str):
    """A string that is written in full even if an equal one was written before, as pickle does for distinct objects."""


def pickled(value: Any) -> bytes:
    """Return the pickle of a value made of plain Python objects and the classes above."""
    writer = _Writer()
    writer.save(value)
    return b"\x80\x02" + b"".join(writer.out) + b"."


class _Writer:
    def __init__(self) -> None:
        self.out: list[bytes] = []
        self._known: dict[str | Global, int] = {}
        self._memos = 0

    def save(self, value: Any) -> None:
        match value:
            case None:
                self.out.append(b"N")
            case bool():
                self.out.append(b"\x88" if value else b"\x89")
            case int():
                self.out.append(_integer(value))
            case str() | Global():
                self._named(value)
            case tuple():
                self._tuple(value)
            case dict():
                self._dict(list(value.items()))
            case MappedPairs():
                self._dict(value.items)
            case list():
                self._list(value)
            case Persistent():
                self.save(value.key)
                self.out.append(b"Q")
            case Call():
                self._call(value)
            case _:
                raise TypeError(f"{type(value).__name__} can't be pickled here")

    def _memoize(self) -> None:
        self.out.append(b"q%c" % self._memos if self._memos < 256 else b"r" + struct.pack("<I", self._memos))
        self._memos += 1

    def _named(self, value: str | Global) -> None:
        known = None if isinstance(value, DistinctStr) else self._known.get(value)
        if known is not None:
            self.out.append(b"h%c" % known if known < 256 else b"j" + struct.pack("<I", known))
            return
        if isinstance(value, Global):
            self.out.append(f"c{value.module}\n{value.name}\n".encode())
        else:
            text = value.encode()
            self.out.append(b"X" + struct.pack("<I", len(text)) + text)
        if not isinstance(value, DistinctStr):
            self._known[value] = self._memos
        self._memoize()

    def _tuple(self, value: tuple[Any, ...]) -> None:
        if not value:
            self.out.append(b")")
            return
        if len(value) > 3:
            self.out.append(b"(")
        for item in value:
            self.save(item)
        self.out.append({1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(value), b"t"))
        self._memoize()

    def _dict(self, items: list[tuple[Any, Any]]) -> None:
        self.out.append(b"}")
        self._memoize()
        self._batches([part for item in items for part in item], 2, b"s", b"u")

    def _list(self, value: list[Any]) -> None:
        self.out.append(b"]")
        self._memoize()
        self._batches(value, 1, b"a", b"e")

    def _batches(self, parts: list[Any], each: int, one: bytes, several: bytes) -> None:
        for start in range(0, len(parts), _BATCH * each):
            batch = parts[start : start + _BATCH * each]
            if len(parts) > each:
                self.out.append(b"(")
            for part in batch:
                self.save(part)
            self.out.append(several if len(parts) > each else one)

    def _call(self, value: Call) -> None:
        self.save(value.function)
        self.save(value.args)
        self.out.append(b"\x81" if value.new else b"R")
        self._memoize()
        if value.state is not None:
            self.save(value.state)
            self.out.append(b"b")


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K%c" % value
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    size = value.bit_length() // 8 + 1
    return b"\x8a%c" % size + value.to_bytes(size, "little", signed=True)
