"""Streams of records: many small read calls for each sample, which must cost little else."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence

import numpy as np
import pytest

from datagen.errors import DatasetError
from datagen.formats.format_base import RecordInputs, reading
from datagen.formats.webdataset import BLOCK, TAIL, TarRecords
from datagen.layout import shifted
from tests.datagen.sources import MemorySource


def tar(sizes: Sequence[int] = (700,) * 6) -> bytearray:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number, size in enumerate(sizes):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size, member.mtime = size, number
            archive.addfile(member, io.BytesIO(bytes(size)))
    return bytearray(out.getvalue()[: len(sizes) * 3 * BLOCK] + TAIL)


def outcome(data: bytearray, first: int, count: int, path: str) -> list[list[int]] | str:
    """Return what a run of samples gives: places in the file, or why there are none."""
    begin, whole = first * 3 * BLOCK, count * 3 * BLOCK
    records = TarRecords(RecordInputs(MemorySource(bytes(data), path), 6, lambda _: None))
    try:
        with reading(path):
            places = np.asarray(records.samples(first, count, memoryview(data)[begin : begin + whole], False))
    except DatasetError as error:
        return str(error).replace(path, "")
    moved: list[list[int]] = shifted(places, begin).tolist()
    return moved


@pytest.mark.parametrize("field", [0, 124, 148, 156, 257, 511])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("value", [0, ord("3"), 255])
def test_a_changed_header_is_found_among_others(field: int, summed: bool, value: int) -> None:
    """As if each sample were read alone, whether the checksum is that of the change or not."""
    data, at = tar(), 4 * 3 * BLOCK
    data[at + field] = value
    if summed and not 148 <= field < 156:
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + BLOCK])
    path = f"s3://bucket/{field}-{summed}-{value}"
    alone = [outcome(data, number, 1, f"{path}-{number}") for number in range(6)]
    wanted = next((one for one in alone if isinstance(one, str)), [one[0] for one in alone])
    assert outcome(data, 0, 6, path) == wanted
