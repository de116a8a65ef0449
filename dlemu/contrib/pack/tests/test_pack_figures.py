"""What a packing says beside its numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dlemu.contrib.pack.analyse import PackMeasurement, compute_figures, images_not_trained_on, train_command
from dlemu.contrib.pack.packed_set import PackedFile, PackedSet, Skipped
from dlemu.contrib.pack.tests.cases import RESULTS
from dlemu.contrib.pack.words import PackSettings
from dlemu.contrib.pack.worker import ROW_DTYPE
from tests.goldens.render import numbers


@pytest.mark.parametrize(
    ("counts", "skipped", "said"),
    [
        ((4, 4, 4), 0, ""),
        ((4, 4, 2), 0, "training reads 8 of the 10 images: .*pack all in equal files: images_per_file=5,"),
        ((4, 4, 3), 0, "training reads 8 of the 11 images: .*pack no more than these in equal files: images=8,"),
        ((4, 3, 4), 1, "training reads 9 of the 11 images: .*remove the damaged images"),
        ((1, 0, 1), 1, "training reads 0 of the 2 images: .*remove the damaged images"),
    ],
)
def test_what_the_command_to_train_does_not_read_is_said(counts: tuple[int, ...], skipped: int, said: str) -> None:
    damaged = ((), (Skipped(path="x", reason="damaged"),) * skipped, ())
    made = tuple(
        PackedFile(
            number=number, samples=samples, source_bytes=9, bytes=9, crc32=0, payload_bytes=9, skipped=damaged[number]
        )
        for number, samples in enumerate(counts)
    )
    packed_set = PackedSet(about={}, format="tfrecord", ending="tfrecord", files=3, images_per_file=4, made=made)
    sentences = list(images_not_trained_on(packed_set))
    assert len(sentences) == bool(said)
    assert not said or re.match(said, sentences[0])
    assert bool(train_command("y", packed_set, ())) == all(counts), "no command that would be refused"


def test_images_that_were_left_out_were_not_packed() -> None:
    rows = np.zeros(1, ROW_DTYPE)
    rows["images"] = 4  # written or left out
    measured = PackMeasurement(
        rows=rows, begin_ns=0, end_ns=2 * 10**9, telemetry=None, finished=(), cores=1, file_system="ext4"
    )
    before = PackedSet(about={}, format="tfrecord", ending="tfrecord", files=2, images_per_file=4)
    damaged = (Skipped(path="x", reason="damaged"),)
    file = PackedFile(number=0, samples=3, source_bytes=9, bytes=9, crc32=0, payload_bytes=9, skipped=damaged)
    settings = PackSettings(source="x", target="y")
    figures = compute_figures(measured, settings, before, replace(before, made=(file,)), "y", 0)
    assert (figures.images, figures.skipped, figures.images_per_second) == (3, 1, 1.5)


@pytest.mark.parametrize(
    ("storage_bytes", "file_system", "percent"),
    [(8192, "ext4", 100), (0, "ext4", 0), (0, "nfs4", None), (2500, "nfs4", 50)],
)
def test_how_much_came_from_the_storage(storage_bytes: int, file_system: str, percent: float | None) -> None:
    """Of small images the kernel counts whole pages; of some file systems it counts nothing."""
    rows = np.zeros(1, ROW_DTYPE)
    for name, value in (("read_bytes", 5000), ("storage_bytes", storage_bytes), ("images", 1)):
        rows[name] = value
    measured = PackMeasurement(
        rows=rows, begin_ns=0, end_ns=10**9, telemetry=None, finished=(), cores=1, file_system=file_system
    )
    packed_set = PackedSet(about={}, format="tfrecord", ending="tfrecord", files=1, images_per_file=1, made=())
    settings = PackSettings(source="x", target="y")
    figures = compute_figures(measured, settings, packed_set, packed_set, "y", 0)
    assert figures.from_storage_percent == percent
    assert any("page cache served" in warning for warning in figures.warnings) == (percent not in (None, 100))


def test_no_number_of_a_saved_packing_changes() -> None:
    """A change that is meant is written by `python -m tests.goldens.write`."""
    folder = RESULTS["pack"]
    assert numbers(str(folder)) == folder.with_suffix(".json").read_text()
