from __future__ import annotations

from pathlib import Path

import pytest

from datagen.errors import UserError
from datagen.formats.npz import Format
from datagen.registry import find


def test_unknown_name_tells_the_nearest_and_all() -> None:
    with pytest.raises(
        UserError,
        match=r"no 'posyx': did you mean posix\? wanted one of fsspec, memory, null, posix, s3",
    ):
        find("datagen.storage", "posyx", "Storage")


def test_dotted_name_is_a_module_or_a_class_in_one() -> None:
    assert find("datagen.formats", "datagen.formats.npz", "Format") is Format
    assert find("datagen.formats", "datagen.formats.npz.Format", "Other") is Format


@pytest.mark.parametrize("name", ["no_such.module", "datagen.nothing.Here", "datagen.spec.x.y", "datagen..spec"])
def test_dotted_name_that_leads_nowhere(name: str) -> None:
    with pytest.raises(UserError, match="PYTHONPATH"):
        find("datagen.formats", name, "Format")


@pytest.mark.parametrize("name", [".", "...", ".spec"])
def test_a_dot_at_an_end_makes_no_dotted_name(name: str) -> None:
    with pytest.raises(UserError, match=r"datagen\.formats has no"):
        find("datagen.formats", name, "Format")


@pytest.mark.parametrize(("name", "meant"), [(".jpg", "jpeg"), ("JPG", "jpeg"), (".npz", "npz"), ("HDF5", "hdf5")])
def test_a_suffix_or_capitals_get_the_name_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"did you mean {meant}\?"):
        find("datagen.formats", name, "Format")


def test_missing_class_in_own_module() -> None:
    with pytest.raises(UserError, match="has no 'Format'"):
        find("datagen.formats", "datagen.errors.Format", "Format")


def test_library_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_pkg_a").mkdir()
    (tmp_path / "own_pkg_a" / "__init__.py").touch()
    (tmp_path / "own_pkg_a" / "fmt.py").write_text("import no_such_library_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="needs the Python package 'no_such_library_at_all'"):
        find("datagen.formats", "own_pkg_a.fmt", "Format")
