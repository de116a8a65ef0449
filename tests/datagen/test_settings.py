"""Settings and names of modules are taken as they are meant, or refused with what was seen and what was wanted."""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import UserError
from datagen.formats.npz import Format
from datagen.registry import find
from datagen.spec import DatasetSpec, ParquetColumn, ParquetSpec, build


def test_values_become_those_of_their_fields() -> None:
    made = build(
        DatasetSpec,
        {
            "num_files_train": 1e6,
            "record_length_bytes": 1,
            "record_dims": [2, 3],
            "enable_chunking": True,
            "compression": "gzip",
            "parquet": {"columns": [{"name": "a"}, {"name": "b", "size": 4.0}]},
        },
    )
    columns = (ParquetColumn(name="a"), ParquetColumn(name="b", size=4))
    assert made == DatasetSpec(
        num_files_train=1_000_000,
        record_length_bytes=1.0,
        record_dims=(2, 3),
        enable_chunking=True,
        compression="gzip",
        parquet=ParquetSpec(columns=columns),
    )
    assert (type(made.num_files_train), type(made.record_length_bytes)) == (int, float)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"num_files_train": "five"}, "num_files_train is 'five': wanted int"),
        ({"num_files_train": 1.5}, "num_files_train is 1.5: wanted int"),
        ({"num_files_train": True}, "num_files_train is True: wanted int"),
        ({"record_dims": [1, "a"]}, "record_dims[1] is 'a': wanted int"),
        ({"enable_chunking": 1}, "enable_chunking is 1: wanted bool"),
        ({"source": "foldr"}, "source is 'foldr': wanted one of generated, folder (did you mean folder?)"),
        ({"parquet": 3}, "parquet is 3: wanted object"),
        ({"parquet": {"columns": [{}]}}, "parquet.columns[0].name is missing"),
        ({"parquet": {"row_groupsize": 1}}, "unknown key parquet.row_groupsize: did you mean parquet.row_group_size?"),
        ({"row_group_size": 1}, "unknown key row_group_size: it belongs at parquet.row_group_size"),
        ({"parquet": {"file_prefix": "a"}}, "unknown key parquet.file_prefix: it belongs at file_prefix"),
        ({"row_gruop_size": 1}, "unknown key row_gruop_size: did you mean parquet.row_group_size?"),
    ],
)
def test_wrong_values_say_seen_and_wanted(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(DatasetSpec, mapping)
    assert str(caught.value) == message


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*(field.name for field in fields(DatasetSpec)), "x"]), values))
def test_any_mapping_gives_settings_or_a_user_error(mapping: dict[str, object]) -> None:
    made = None
    with contextlib.suppress(UserError):  # any other exception fails the test
        made = build(DatasetSpec, mapping)
    assert made is None or isinstance(made.num_files_train, int)


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


def test_dotted_name_is_a_module_or_a_class_in_one() -> None:
    assert find("datagen.formats", "datagen.formats.npz", "Format") is Format
    assert find("datagen.formats", "datagen.formats.npz.Format", "Other") is Format


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(
            (name, "PYTHONPATH")
            for name in ("no_such.module", "datagen.nothing.Here", "datagen.spec.x.y", "datagen..spec")
        ),
        *((name, r"datagen\.formats has no") for name in (".", "...", ".spec")),
        *((name, rf"did you mean {meant}\?") for name, meant in ((".jpg", "jpeg"), ("JPG", "jpeg"), (".npz", "npz"))),
        ("HDF5", r"no 'HDF5': did you mean hdf5\? wanted one of csv, hdf5, .*, webdataset"),
    ],
)
def test_a_name_that_leads_nowhere_tells_the_nearest_and_all(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find("datagen.formats", name, "Format")


def test_missing_class_in_own_module() -> None:
    with pytest.raises(UserError, match="has no 'Format'"):
        find("datagen.formats", "datagen.errors.Format", "Format")
    with pytest.raises(UserError, match=r"'FormatBase' of module datagen.* has no .*file_bytes.*: define"):
        find("datagen.formats", "datagen.formats.format_base.FormatBase", "Format")


def test_library_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_pkg_a").mkdir()
    (tmp_path / "own_pkg_a" / "__init__.py").touch()
    (tmp_path / "own_pkg_a" / "fmt.py").write_text("import no_such_library_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="needs the Python package 'no_such_library_at_all'"):
        find("datagen.formats", "own_pkg_a.fmt", "Format")
