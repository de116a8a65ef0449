"""What ranks send each other arrives as it was, and nothing that a stranger sends runs any code."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import DlemuError
from dlemu.ranks.messages import decode, encode


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    left: int
    right: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inner:
    values: tuple[int, ...]


@dataclass(frozen=True)
class Outer:
    inner: Inner
    colour: Colour = Colour.RED
    made: int = field(init=False, default=7)

    def __post_init__(self) -> None:
        assert self.inner.values, "never called by one who reads a message"


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.binary() | st.text()
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    PLAIN | st.sets(st.integers()) | st.frozensets(st.text()),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
)


@given(VALUES)
def test_collections_of_plain_values_arrive_with_their_types(value: Any) -> None:
    found = decode(encode(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "value",
    [Outer(Inner((1, 2))), Pair(1, "a"), Row(number=3, names=("b",)), Colour.RED, range(3, 9, 2), "file-\udcff"],
)
def test_records_arrive_as_they_were(value: Any) -> None:
    found = decode(encode({"value": value}))["value"]
    assert (type(found), found) == (type(value), value)


def test_arrays_arrive_whole_and_can_be_written() -> None:
    rows = np.zeros(3, [("at_ns", np.int64), ("share", np.float32, 2)])
    rows["at_ns"] = range(3)
    found, number = decode(encode((rows, np.int64(5))))
    assert found.dtype == rows.dtype
    assert (found == rows).all()
    assert (number, type(number)) == (5, np.int64)
    found["at_ns"] = 0


class Stranger:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit",)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        pickle.dumps(Stranger()),
        msgspec.msgpack.encode({"os:system": ["false"]}),
        msgspec.msgpack.encode({"subprocess:Popen": [["false"]]}),
        msgspec.msgpack.encode({"no.such.module:Type": []}),
        msgspec.msgpack.encode({"a": 1, "b": 2}),
        msgspec.msgpack.encode({f"{__name__}:Inner": []}),
        msgspec.msgpack.encode({"array": pickle.dumps(Stranger())}),
    ],
)
def test_what_a_stranger_sends_is_refused(message: bytes) -> None:
    with pytest.raises(DlemuError, match="a message from another rank can't be read"):
        decode(message)


@pytest.mark.parametrize("value", [Path("x"), lambda: 0, object(), np.array([object()])])
def test_what_cannot_be_sent_says_so(value: Any) -> None:
    with pytest.raises((DlemuError, ValueError)):
        encode(value)
