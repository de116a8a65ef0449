"""Images on their way into packed files, the settings, and what is said of a packing's numbers."""

from __future__ import annotations

import errno
import importlib
import io
import math
import os
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from datagen.errors import DatasetError, DlemuError, UserError
from datagen.formats.format_base import PackedSample, Packer
from datagen.formats.tfrecord import Format as Tfrecord
from datagen.formats.webdataset import Format as Webdataset
from datagen.registry import companion, names
from datagen.storage import memory
from datagen.storage.posix import Storage
from dlemu.config import load
from dlemu.contrib.pack.job import FILES_PER_RANK, JOB, MAX_IMAGES_PER_FILE, choose_images_per_file, images_below
from dlemu.contrib.pack.recipe import DamagedError, Recipe, prepare
from dlemu.contrib.pack.settings import PACK_FORMATS, PackSettings
from dlemu.contrib.pack.summary import ADVICE, PackDevice, PackLimit, judge_packing, train_command
from dlemu.contrib.pack.tests.cases import RESULTS
from dlemu.runner.job import JobRequest, run_alone
from tests.datagen.sources import records_of
from tests.goldens.render import numbers

RAW_20X30 = Recipe((20, 30), "raw")


def picture(height: int = 60, width: int = 90) -> NDArray[np.uint8]:
    rows, across = np.mgrid[0:height, 0:width]
    return np.stack([rows * 255 // height, across * 255 // width, np.full_like(rows, 40)], axis=-1).astype(np.uint8)


def saved(array: NDArray[Any], kind: str) -> memoryview:
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind)
    return out.getbuffer()


@pytest.mark.parametrize("kind", ["jpeg", "png", "tiff"])
def test_every_kind_becomes_the_same_small_picture(kind: str) -> None:
    sample = prepare(f"a/b.{kind}", saved(picture(), kind), RAW_20X30)
    pixels = np.frombuffer(sample.data, np.uint8).reshape(20, 30, 3).astype(int)
    wanted = np.asarray(Image.fromarray(picture()).resize((30, 20), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(pixels - wanted).max() <= 24  # JPEG's losses, and how each library scales
    assert np.abs(pixels - wanted).mean() <= 4


def test_the_shorter_side_keeps_the_shape() -> None:
    sample = prepare("a.png", saved(picture(), "png"), Recipe((20,), "jpeg"))
    assert simplejpeg.decode_jpeg(bytes(sample.data)).shape == (20, 30, 3)


def test_sixteen_bits_become_eight_by_their_upper_half() -> None:
    deep = (np.arange(64, dtype=np.uint16).reshape(8, 8) * 1024).astype(np.uint16)
    sample = prepare("a.tiff", saved(deep, "tiff"), Recipe((), "raw"))
    assert (np.frombuffer(sample.data, np.uint8).reshape(8, 8) == deep >> 8).all()


def test_a_file_that_is_kept_is_not_looked_into() -> None:
    sample = prepare("x/y.Z", memoryview(b"anything"), Recipe((), "keep"))
    assert sample == PackedSample("x/y.Z", memoryview(b"anything"), "z")


def stated_size(kind: str) -> bytes:
    """Return a picture of a few bytes whose header states 60000 x 60000 pixels."""
    right = bytearray(saved(picture(), kind))
    if kind == "png":
        right[16:24] = struct.pack(">II", 60_000, 60_000)
        right[29:33] = struct.pack(">I", zlib.crc32(right[12:29]))
    elif kind == "jpeg":
        begin = right.index(b"\xff\xc0") + 5
        right[begin : begin + 4] = struct.pack(">HH", 60_000, 60_000)
    else:
        for tag in (256, 257):  # width, height
            at = right.index(struct.pack("<HH", tag, 4), 4)
            right[at + 8 : at + 12] = struct.pack("<I", 60_000)
    return bytes(right)


@pytest.mark.parametrize("kind", ["jpeg", "png", "tiff"])
def test_what_is_damaged_or_larger_than_memory_is_said(kind: str) -> None:
    right = bytes(saved(picture(), kind))
    for wrong in (b"", b"garbage", right[: len(right) // 2]):
        with pytest.raises(DamagedError):
            prepare(f"a.{kind}", memoryview(wrong), RAW_20X30)
    with pytest.raises(DamagedError, match="60000 x 60000 pixels"):
        prepare(f"a.{kind}", memoryview(stated_size(kind)), RAW_20X30)


def packed(name: str, samples: list[PackedSample]) -> tuple[bytes, bytes]:
    """Return a packed file and its side file."""
    storage = memory.Storage()
    writer = storage.create("x")
    packer: Packer = companion("datagen.formats", name, "Packer")(writer)
    for sample in samples:
        packer.add(sample)
    side = packer.finish()
    writer.commit()
    return storage.files["x"], side


def test_a_tar_is_read_by_tarfile_and_names_say_the_source() -> None:
    sources = ["a/cat.1.jpg", "a/cat_1.jpg", "b/dog.jpg"]
    samples = [PackedSample(name, memoryview(name.encode() * 200), "jpg") for name in sources]
    with tarfile.open(fileobj=io.BytesIO(packed("webdataset", samples)[0])) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == ["a_cat_1.jpg", "a_cat_1_1.jpg", "b_dog.jpg"]
        for member, sample in zip(members, samples, strict=True):
            file = archive.extractfile(member)
            assert file is not None
            assert file.read() == sample.data


@pytest.mark.parametrize("name", PACK_FORMATS)
@given(sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=12))
@example(sizes=[1, 0, 0, 1025])  # as a tar, 4 x 1,024 bytes in all, and the second and third together 1,024
def test_samples_of_any_sizes_are_found_again(name: str, sizes: list[int]) -> None:
    samples = [PackedSample(f"{i}.x", memoryview(bytes([i + 1]) * size), "x") for i, size in enumerate(sizes)]
    data, side = packed(name, samples)
    formats: dict[str, Any] = {"tfrecord": Tfrecord(), "webdataset": Webdataset()}
    assert records_of(formats[name], data, len(sizes)) == [bytes(sample.data) for sample in samples]
    if name == "tfrecord":
        places = [tuple(map(int, line.split())) for line in side.decode().splitlines()]
        assert sum(size for _, size in places) == len(data)
        assert [struct.unpack_from("<Q", data, at)[0] + 16 for at, _ in places] == [size for _, size in places]


def test_which_files_are_packed(tmp_path: Path) -> None:
    for name in ("b/2.PNG", "a/1.jpg", ".hidden.jpg", "notes.txt", "packed/train/x.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    folder, target = str(tmp_path), str(tmp_path / "packed")
    assert images_below(folder, target, only_images=True) == ["a/1.jpg", "b/2.PNG"]
    assert images_below(folder, target, only_images=False) == ["a/1.jpg", "b/2.PNG", "notes.txt"]
    with pytest.raises(DatasetError, match="No such file or directory: wanted a folder"):
        images_below(target + "/none", target, only_images=False)


@given(st.integers(1, 20_000), st.integers(1, 64))
def test_images_are_shared_out_evenly_where_a_number_near_by_divides_them(images: int, processes: int) -> None:
    each = choose_images_per_file(images, processes)
    wanted = max(1, min(images // (FILES_PER_RANK * processes), MAX_IMAGES_PER_FILE))
    divides = [n for n in range(1, MAX_IMAGES_PER_FILE + 1) if images % n == 0 and wanted <= 2 * n <= 4 * wanted]
    assert images % each == 0 if divides else each == wanted
    assert wanted <= 2 * each <= 4 * wanted


# Settings


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pack.proceses=4"], "proceses"),
        (["pack.images=-1"], "pack.images is -1"),
        (["pack.format=tar"], "wanted one of tfrecord, webdataset"),
        (["pack.resize=x"], "resize is .*224x224"),
        (["pack.resize=-1"], "resize is .*224x224"),
        (["pack.resize=0x5"], "resize is .*224x224"),
        (["pack.resize=224", "pack.encode=keep"], "wanted pack.encode=raw or jpeg"),
        (["pack.source=", "workload=unet3d", "storage.storage_type=s3", "storage.storage_root=b"], "is s3: dlemu pack"),
    ],
)
def test_what_nothing_can_be_packed_with(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        JOB.complete(load(["pack.source=/a", "pack.target=/b", *words]))


def test_formats_that_can_be_packed_are_those_with_a_packer() -> None:
    every = names("datagen.formats")
    with_packer = [name for name in every if hasattr(importlib.import_module(f"datagen.formats.{name}"), "Packer")]
    assert list(PACK_FORMATS) == with_packer


# What is said of a packing


@pytest.mark.parametrize(("images", "trained"), [(12, 12), (10, 8), (3, 3), (4, 4), (5, 4)])
def test_the_command_to_train_reads_files_of_equal_length(images: int, trained: int) -> None:
    words = train_command(PackSettings(target="y"), images, 4, 9).split()[2:]
    settings = dict(word.split("=") for word in words)
    assert int(settings["dataset.num_files_train"]) * int(settings["dataset.num_samples_per_file"]) == trained


def test_no_number_of_a_saved_packing_changes() -> None:
    """A change that is meant is written by `python -m tests.goldens.write`."""
    folder = RESULTS["pack"]
    assert numbers(str(folder)) == folder.with_suffix(".json").read_text()


def judged(**changed: Any) -> PackLimit:
    spent = [changed.pop(part, 0.0) for part in ("reading", "computing", "wanting_core", "writing", "idle")]
    shares: Any = tuple(spent)
    device = PackDevice(mean_depth=changed.pop("depth", 8.0), busy_percent=changed.pop("busy", 99.0))
    host: dict[str, Any] = {"processes": 4, "cores": 8, "host_busy_percent": 40.0, "own_busy_percent": 30.0}
    return judge_packing(shares, device, **{"throttled_percent": math.nan} | host | changed)


@pytest.mark.parametrize(
    ("seen", "what", "advice"),
    [
        ({"reading": 90, "computing": 10}, "storage", "faster_storage_to_read"),
        ({"writing": 90, "computing": 10}, "storage", "faster_storage_to_write"),
        ({"reading": 90, "computing": 10, "depth": 1, "busy": 50}, "processes", "more_requests"),
        ({"reading": 90, "computing": 10, "depth": 1}, "storage", "faster_storage_to_read"),
        ({"computing": 95, "writing": 5}, "processes", "use_free_cores"),
        ({"computing": 95, "writing": 5, "processes": 8}, "host CPU", "more_cores"),
        ({"computing": 40, "wanting_core": 55, "host_busy_percent": 100}, "host CPU", "stop_other_programs"),
        ({"wanting_core": 95, "host_busy_percent": 100, "throttled_percent": 10}, "host CPU", "raise_cpu_limit"),
        ({"computing": 10, "idle": 90, "processes": 96}, "images", "more_images"),
    ],
)
def test_what_limited(seen: dict[str, Any], what: str, advice: str) -> None:
    limit = judged(**seen)
    assert (limit.what, limit.advice) == (what, advice)
    assert advice in ADVICE


# A target that fails, and what others have there


def pack_one(tmp_path: Path, *words: str) -> Path:
    images, target = tmp_path / "images", tmp_path / "packed"
    images.mkdir(exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(images / "0.png")
    own = (f"pack.source={images}", f"pack.target={target}", "pack.evict=false", "telemetry.enabled=false")
    request = JobRequest(load=lambda: load([*own, f"output.folder={tmp_path / 'result'}", *words]))
    run_alone(request, lambda _: None, JOB)
    return target


def test_a_target_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Storage, "sync", fail)
    with pytest.raises(DlemuError, match=f"{tmp_path / 'packed'}.*Permission denied"):
        pack_one(tmp_path)


@pytest.mark.parametrize("harm", ["a file", "train", "index/train", "a link", "packed.json", "settings"])
def test_what_others_have_in_a_target_stays(harm: str, tmp_path: Path) -> None:
    target, others = tmp_path / "packed", tmp_path / "others"
    others.mkdir()
    if harm == "settings":
        pack_one(tmp_path)
        text = (target / "packed.json").read_text().replace('"complete": true', '"complete": false')
        (target / "packed.json").write_text(text)
    elif harm == "a link":
        target.mkdir()
        (target / "train").symlink_to(others)
    else:
        place = target / harm
        place = place if harm in ("a file", "packed.json") else place / "img_0_of_1.tfrecord"
        place.parent.mkdir(parents=True)
        place.write_bytes(b"theirs")
        if harm != "a file":
            (target / ".dlemu-owned").write_text('{"dlemu": "", "version": 1}\n')
    before = {path: path.read_bytes() for path in target.rglob("[!.]*") if path.is_file()}
    with pytest.raises(UserError, match="packed"):
        pack_one(tmp_path, *(["pack.resize=8x8"] if harm == "settings" else []), f"output.folder={tmp_path / 'second'}")
    with JOB.own_place(load([f"pack.target={target}"]), "point-01"):
        pass
    assert {path: path.read_bytes() for path in before} == before
    assert not list(others.iterdir())
