from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import UserError
from datagen.spec import DatasetSpec, build


@dataclass(frozen=True)
class Pace:
    seconds: float

    @classmethod
    def from_value(cls, value: object, where: str) -> Pace:
        if isinstance(value, int | float):
            return cls(float(value))
        raise UserError(f"{where} is no pace")


@dataclass(frozen=True)
class Inner:
    batch_size: int = 1
    kind: Literal["off", "seed", "random"] = "off"
    exact: bool = False
    pace: Pace = field(default=Pace(0))


@dataclass(frozen=True)
class Entry:
    size: int
    name: str = ""


@dataclass(frozen=True)
class Root:
    reader: Inner = field(default=Inner())
    epochs: int = 1
    share: float = 0.5
    limit: int | None = None
    names: tuple[str, ...] = ()
    entries: dict[str, Entry] = field(default_factory=dict)
    free: dict[str, object] = field(default_factory=dict)


def problems(mapping: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        build(Root, mapping)
    return str(caught.value)


def test_builds_the_whole_tree() -> None:
    made = build(
        Root,
        {
            "reader": {"batch_size": 4.0, "kind": "seed", "exact": True, "pace": 3},
            "epochs": 1e6,
            "share": 1,
            "names": ["a", "b"],
            "entries": {"x": {"size": 2}},
            "free": {"any": [1, {"thing": None}]},
        },
    )
    assert made == Root(
        reader=Inner(4, "seed", True, Pace(3.0)),
        epochs=1_000_000,
        share=1.0,
        names=("a", "b"),
        entries={"x": Entry(2)},
        free={"any": [1, {"thing": None}]},
    )
    assert isinstance(made.epochs, int)
    assert isinstance(made.share, float)


def test_nearest_key_of_the_section() -> None:
    assert problems({"reader": {"batchsize": 1}}) == "unknown key reader.batchsize: did you mean reader.batch_size?"


def test_key_of_another_section_is_sent_there() -> None:
    assert problems({"batch_size": 1}) == "unknown key batch_size: it belongs at reader.batch_size"
    assert problems({"reader": {"epochs": 1}}) == "unknown key reader.epochs: it belongs at epochs"
    assert problems({"bacth_size": 1}) == "unknown key bacth_size: did you mean reader.batch_size?"


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"epochs": "five"}, "epochs is 'five': wanted int"),
        ({"epochs": 1.5}, "epochs is 1.5: wanted int"),
        ({"epochs": True}, "epochs is True: wanted int"),
        ({"names": ["a", 1]}, "names[1] is 1: wanted str"),
        ({"reader": {"exact": 1}}, "reader.exact is 1: wanted bool"),
        ({"reader": {"kind": "sed"}}, "reader.kind is 'sed': wanted one of off, seed, random (did you mean seed?)"),
        ({"reader": {"pace": "x"}}, "reader.pace is no pace"),
        ({"reader": 3}, "reader is 3: wanted object"),
        ({"entries": {"x": {}}}, "entries.x.size is missing"),
    ],
)
def test_wrong_values_say_seen_and_wanted(mapping: dict[str, Any], message: str) -> None:
    assert problems(mapping) == message


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["reader", "epochs", "share", "limit", "names", "entries", "x"]), values))
def test_any_mapping_gives_a_root_or_a_user_error(mapping: dict[str, object]) -> None:
    made = None
    with contextlib.suppress(UserError):  # any other exception fails the test
        made = build(Root, mapping)
    assert made is None or isinstance(made.epochs, int)


def test_check_names_every_impossible_value() -> None:
    spec = DatasetSpec(num_files_train=-1, record_length_bytes=0, compressibility=1, file_prefix="a/b", format="npz")
    text = "\n".join(spec.check())
    for key in ("num_files_train", "record_length_bytes", "compressibility", "file_prefix"):
        assert f"dataset.{key} is " in text


def test_the_limit_on_a_dataset_is_of_bytes_not_of_elements() -> None:
    """2^60 numbers of 8 bytes: offsets in them do not fit in 64 bits."""
    spec = DatasetSpec(format="npy", num_files_train=1, record_dims=(1 << 20,) * 3)
    assert spec.check() == []
    (problem,) = replace(spec, record_element_type="float64").check()
    assert "multiply to 9.22e+18 bytes" in problem
