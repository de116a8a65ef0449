from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import DatasetError
from datagen.formats.indexed_binary import SUFFIXES
from datagen.formats.tfrecord import Index
from datagen.layout import layouts
from datagen.manifest import MANIFEST_NAME
from datagen.spec import DatasetSpec
from datagen.verify import Damage, verify
from tests.datagen.conftest import MakeSpec, make


def only(spec: DatasetSpec, **options: Any) -> Damage:
    findings = verify(spec, **options)
    assert len(findings) == 1
    return findings[0]


def test_ranks_share_the_files(small: MakeSpec) -> None:
    spec = make(small())
    os.unlink(layouts(spec)[0].path(3))
    assert [len(verify(spec, rank=rank, ranks=2)) for rank in range(2)] == [0, 1]


@pytest.mark.parametrize("stdev", [0, 6000])
def test_files_that_are_swapped_or_of_another_seed(small: MakeSpec, tmp_path: Path, stdev: int) -> None:
    spec = make(small(record_length_bytes_stdev=stdev))
    foreign = make(small(seed=1, record_length_bytes_stdev=stdev, data_folder=str(tmp_path / "other")))
    one, two, other = (Path(layouts(spec)[0].path(file)) for file in (1, 2, 4))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    os.replace(layouts(foreign)[0].path(2), two)
    findings = verify(spec)
    assert [finding.path for finding in findings] == [str(path) for path in (one, two, other)]
    words = ("file number 4", "another dataset", "file number 1")
    assert all(word in finding.message for word, finding in zip(words, findings, strict=True))


def test_the_first_block_behind_a_moved_block(small: MakeSpec) -> None:
    """A storage that returns the right file from a wrong offset is found, and its offset told."""
    spec = make(small(record_length_bytes_stdev=0))
    path = Path(layouts(spec)[0].path(0))
    data = path.read_bytes()
    path.write_bytes(data[: 183 + 4096] + data[183 + 8192 : 183 + 12288] + data[183 + 8192 :])
    assert "file number 0, payload offset 8192" in only(spec).message


@pytest.mark.parametrize("size", [0, 1, 9000, 50_000])
def test_wrong_sizes(small: MakeSpec, size: int) -> None:
    spec = make(small())
    os.truncate(layouts(spec)[0].path(2), size)
    assert f"it has {size} bytes, wanted" in only(spec).message


def test_without_a_manifest_nothing_is_known(small: MakeSpec) -> None:
    spec = make(small())
    os.unlink(os.path.join(spec.data_folder, MANIFEST_NAME))
    with pytest.raises(DatasetError, match="dlemu did not make this dataset"):
        verify(spec)


@pytest.mark.parametrize(
    ("name", "suffix"), [("tfrecord", ""), ("tfrecord", "index"), *[("indexed_binary", s) for s in ("", *SUFFIXES)]]
)
@pytest.mark.parametrize("damage", ["changed", "truncated", "missing"])
def test_damaged_files_and_indexes_of_records_are_named(small: MakeSpec, name: str, suffix: str, damage: str) -> None:
    spec = make(small(format=name, num_samples_per_file=5))
    train = layouts(spec)[0]
    path = Path(Index().path(train, 3) if suffix == "index" else train.path(3) + suffix)
    if damage == "changed":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "truncated":
        os.truncate(path, 17)
    else:
        path.unlink()
    finding = only(spec)
    said = {"changed": "differs from", "truncated": "it has 17 bytes, wanted", "missing": "no such file"}
    assert finding.path == str(path)
    assert said[damage] in finding.message


def test_an_unreadable_file(small: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make(small(num_files_train=1, num_files_eval=0))

    whole = os.preadv

    def broken(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if len(buffers[0]) < 20_000:  # the manifest
            return whole(descriptor, buffers, offset)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    assert "Input/output error" in only(spec).message


def test_compressed_files_are_generated_again(small: MakeSpec) -> None:
    spec = make(small(compression="zip"))
    assert verify(spec) == []
    path = Path(layouts(spec)[0].path(1))
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    message = only(spec).message
    assert message.startswith("it differs from what was generated, at offset 300: ")
    assert message.endswith("; the version of the library that compresses decides on its bytes, too")
