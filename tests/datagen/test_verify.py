from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import DatasetError
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


def test_the_first_block_behind_a_moved_block(small: MakeSpec) -> None:
    """A storage that returns the right file from a wrong offset is found, and its offset told."""
    spec = make(small(record_length_bytes_stdev=0))
    path = Path(layouts(spec)[0].path(0))
    data = path.read_bytes()
    path.write_bytes(data[: 183 + 4096] + data[183 + 8192 : 183 + 12288] + data[183 + 8192 :])
    assert "file number 0, payload offset 8192" in only(spec).message


def test_without_a_manifest_nothing_is_known(small: MakeSpec) -> None:
    spec = make(small())
    os.unlink(os.path.join(spec.data_folder, MANIFEST_NAME))
    with pytest.raises(DatasetError, match="dlemu did not make this dataset"):
        verify(spec)


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
