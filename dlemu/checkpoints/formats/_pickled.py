"""Pickles of objects whose classes are not imported, so that PyTorch's files can be laid out without PyTorch.

Protocol 2, with the same opcodes as CPython's pickler, so that files have the same size as PyTorch's.
"""

from __future__ import annotations

import pickle
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


@dataclass(frozen=True, eq=False)
class Call:
    """The result of `function(*args)`, or with `new` of `cls.__new__(cls, *args)`; then its state is set."""

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
    def __init__(self) -> None:
        self.out: list[bytes] = []
        self._known: dict[str | Global, int] = {}
        """What is written by its memo's number the second time: equal strings and classes."""
        self._memos = 0

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
                self._named(value)
            case ():
                self.out.append(b")")
            case tuple():
                self._all(value, b"(" if len(value) > 3 else b"")
                self._memoize({1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(value), b"t"))
            case dict():
                self._memoize(b"}")
                self._batches([part for item in value.items() for part in item], 2, b"s", b"u")
            case list():
                self._memoize(b"]")
                self._batches(value, 1, b"a", b"e")
            case _:
                self.out.append(pickle.dumps(value, protocol=2)[2:-1])

    def _memoize(self, opcode: bytes) -> None:
        number = self._memos
        self.out.append(opcode + (b"q%c" % number if number < 256 else b"r" + struct.pack("<I", number)))
        self._memos += 1

    def _named(self, value: str | Global) -> None:
        known = None if isinstance(value, DistinctStr) else self._known.setdefault(value, self._memos)
        if known not in (None, self._memos):
            self.out.append(b"h%c" % known if known < 256 else b"j" + struct.pack("<I", known))
        elif isinstance(value, Global):
            self._memoize(f"c{value.module}\n{value.name}\n".encode())
        else:
            text = value.encode()
            self._memoize(b"X" + struct.pack("<I", len(text)) + text)

    def _all(self, values: Any, mark: bytes) -> None:
        self.out.append(mark)
        for value in values:
            self.save(value)

    def _batches(self, parts: list[Any], each: int, one: bytes, several: bytes) -> None:
        many = len(parts) > each
        for start in range(0, len(parts), _BATCH * each):
            self._all(parts[start : start + _BATCH * each], b"(" if many else b"")
            self.out.append(several if many else one)
