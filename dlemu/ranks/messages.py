"""What ranks and hosts send each other: plain values, arrays, and records of types that both sides have imported.

Whoever reaches a port of MPI or torchrun may send anything, so nothing is pickled: to read a message calls no code but
that which fills the fields of a dataclass, a NamedTuple or a msgspec.Struct.
"""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
import numpy as np

from datagen.errors import DlemuError

_COLLECTIONS: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value: Any) -> bytes:
    """Return a value as a message; raises DlemuError for one of another type than these."""
    return msgspec.msgpack.encode(_plain(value))


def decode(message: bytes | bytearray) -> Any:
    """Return the value of a message; raises DlemuError for one that `encode` did not make."""
    try:
        return _value(msgspec.msgpack.decode(message))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DlemuError(
            f"a message from another rank can't be read ({error}): wanted the same version of dlemu and of its "
            "extensions on all hosts, and no other process at the ports of MPI and torchrun"
        ) from error


def _plain(value: Any) -> Any:
    """Return a value as what msgpack has; all but these are maps: {name of the type: content}."""
    kind = type(value)
    if value is None or kind in (bool, float, bytes, bytearray):
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else {"int": str(value)}
    if kind is str:  # a file's name may have bytes that are no UTF-8
        return value if value.isascii() else {"str": value.encode("utf-8", "surrogatepass")}
    if kind is list:
        return [_plain(item) for item in value]
    if kind is dict:
        return {"dict": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind.__name__ in _COLLECTIONS and kind is _COLLECTIONS[kind.__name__]:
        return {kind.__name__: [_plain(item) for item in value]}
    if isinstance(value, np.ndarray | np.generic):
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return {"array" if isinstance(value, np.ndarray) else "scalar": file.getvalue()}
    name = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(value, Enum):
        return {name: _plain(value.value)}
    fields = _fields(kind)
    if fields is None:
        raise DlemuError(
            f"a {kind.__qualname__} can't be sent to other ranks: wanted numbers, text, collections, arrays, and "
            "dataclasses, NamedTuples or Structs of these"
        )
    return {name: [_plain(getattr(value, field)) for field in fields]}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((name, content),) = plain.items()
    if name in _COLLECTIONS:
        return _COLLECTIONS[name](map(_value, content))
    reader = _READERS.get(name)
    return reader(content) if reader is not None else _record(name, content)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "str": lambda content: content.decode("utf-8", "surrogatepass"),
    "range": lambda content: range(*content),
    "dict": lambda content: {_value(key): _value(item) for key, item in content},
    "array": lambda content: np.load(io.BytesIO(content), allow_pickle=False),
    "scalar": lambda content: np.load(io.BytesIO(content), allow_pickle=False)[()],
}


def _record(name: str, content: Any) -> Any:
    module, _, path = name.partition(":")
    kind: Any = sys.modules[module]
    for part in path.split("."):
        kind = getattr(kind, part)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(_value(content))
    fields = _fields(kind)
    if fields is None:
        raise TypeError(f"{name} is no record")
    values = dict(zip(fields, map(_value, content), strict=True))
    if issubclass(kind, tuple | msgspec.Struct):
        return kind(**values)
    record = object.__new__(kind)  # as it was, whatever its own __init__ would make of these
    for field, value in values.items():
        object.__setattr__(record, field, value)
    return record


def _fields(kind: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a type of record; None for another type."""
    if not isinstance(kind, type):
        return None
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    names = getattr(kind, "_fields", None)
    return names if issubclass(kind, tuple) and isinstance(names, tuple) else None
