from __future__ import annotations

from pathlib import Path

import pytest

from datagen.errors import UserError
from datagen.formats.npz import Format
from datagen.registry import find


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
