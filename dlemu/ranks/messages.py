"""Messages between ranks and hosts: plain values, arrays, and records of types that both sides have imported.

Messages are not pickled, because any program that reaches a port of MPI or torchrun can send one. Decoding a message
runs no code except to fill the fields of a dataclass, a NamedTuple or a msgspec.Struct.
"""

from __future__ import annotations

import dataclasses
import io
import operator
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
import numpy as np

from datagen.errors import DlemuError

_TO_ITEMS: dict[type, Callable[[Any], list[Any]]] = {  # type -> function that takes a value of this type apart
    int: lambda value: [str(value)],
    str: lambda value: [value.encode("utf-8", "surrogatepass")],  # file names may have bytes that are not UTF-8
    tuple: list,
    set: list,
    frozenset: list,
    range: lambda value: [value.start, value.stop, value.step],
    dict: lambda value: [list(item) for item in value.items()],
}
_FROM_ITEMS: dict[str, Callable[[list[Any]], Any]] = {  # name of a type -> function that makes a value from its items
    "int": lambda items: int(*items),
    "str": lambda items: items[0].decode("utf-8", "surrogatepass"),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "range": lambda items: range(*items),
    "dict": dict,
    "array": lambda items: np.load(io.BytesIO(*items), allow_pickle=False),
    "scalar": lambda items: np.load(io.BytesIO(*items), allow_pickle=False)[()],
}


def encode(value: Any) -> bytes:
    """Return a value as a message; raises DlemuError for a value of an unsupported type."""
    try:
        return msgspec.msgpack.encode(_to_plain(value))
    except TypeError as error:
        raise DlemuError(
            f"{error} and can't be sent to other ranks: wanted numbers, text, collections, arrays, and dataclasses, "
            "NamedTuples or Structs of these"
        ) from error


def decode(message: bytes | bytearray) -> Any:
    """Return the value of a message; raises DlemuError for a message that is not from `encode`."""
    try:
        return _from_plain(msgspec.msgpack.decode(message))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise DlemuError(
            f"a message from another rank can't be read ({error}): wanted the same version of dlemu and of its "
            "extensions on all hosts, and no other process at the ports of MPI and torchrun"
        ) from error


def _to_plain(value: Any) -> Any:
    """Return a value in msgpack's types; a value of another type becomes a map {name of the type: items}."""
    kind = type(value)
    if value is None or kind in (bool, float, bytes, bytearray) or (kind is str and value.isascii()):
        return value
    if kind is int and -(1 << 63) <= value < 1 << 63:
        return value
    if kind is list:
        return [_to_plain(item) for item in value]
    if kind in _TO_ITEMS:
        name, items = kind.__name__, _TO_ITEMS[kind](value)
    elif isinstance(value, np.ndarray | np.generic):
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        name, items = "array" if isinstance(value, np.ndarray) else "scalar", [file.getvalue()]
    else:
        name = f"{kind.__module__}:{kind.__qualname__}"
        items = [value.value] if isinstance(value, Enum) else [getattr(value, field) for field in _fields(kind)]
    return {name: [_to_plain(item) for item in items]}


def _from_plain(plain: Any) -> Any:
    """Return the value that `_to_plain` has converted."""
    if isinstance(plain, list):
        return [_from_plain(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((name, content),) = plain.items()  # {name of the type: items}, as `_to_plain` makes it
    items = [_from_plain(item) for item in content]
    return _FROM_ITEMS[name](items) if name in _FROM_ITEMS else _record(name, items)


def _record(name: str, items: list[Any]) -> Any:
    module, _, path = name.partition(":")
    kind: Any = operator.attrgetter(path)(sys.modules[module])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(*items)
    values = dict(zip(_fields(kind), items, strict=True))
    if issubclass(kind, tuple | msgspec.Struct):
        return kind(**values)
    record = object.__new__(kind)  # restores the fields without running the dataclass's own __init__
    for field, value in values.items():
        object.__setattr__(record, field, value)
    return record


def _fields(kind: Any) -> tuple[str, ...]:
    """Return the field names of a record's type; raises TypeError for any other type."""
    if isinstance(kind, type):
        if dataclasses.is_dataclass(kind):
            return tuple(field.name for field in dataclasses.fields(kind))
        if issubclass(kind, msgspec.Struct):
            return kind.__struct_fields__
        if issubclass(kind, tuple) and isinstance(names := getattr(kind, "_fields", None), tuple):
            return names
    raise TypeError(f"{kind!r} is no type of a record")
