"""Images on their way into packed files: what becomes of them, and that each format's own library reads them back."""

from __future__ import annotations

import errno
import io
import json
import os
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import simplejpeg
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from datagen.errors import DatasetError, UserError
from datagen.formats.format_base import PackedSample, Packer
from datagen.formats.tfrecord import Format as Tfrecord
from datagen.formats.webdataset import Format as Webdataset
from datagen.registry import companion
from datagen.storage import memory
from datagen.storage.posix import Storage
from dlemu.contrib.pack.image_list import FILES_PER_PROCESS, MAX_IMAGES_PER_FILE, choose_images_per_file, images_below
from dlemu.contrib.pack.packed_set import (
    JOURNAL_NAME,
    PackedFile,
    PackedSet,
    layout_of,
    read_set,
    remove_set,
    verify_set,
    write_set,
)
from dlemu.contrib.pack.recipe import DamagedError, prepare, recipe_of
from tests.datagen.sources import MemorySource


def picture(height: int = 60, width: int = 90) -> NDArray[np.uint8]:
    rows, across = np.mgrid[0:height, 0:width]
    return np.stack([rows * 255 // height, across * 255 // width, np.full_like(rows, 40)], axis=-1).astype(np.uint8)


def saved(array: NDArray[Any], kind: str) -> memoryview:
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind)
    return out.getbuffer()


def npy(array: NDArray[Any]) -> memoryview:
    out = io.BytesIO()
    np.save(out, array)
    return out.getbuffer()


@pytest.mark.parametrize("kind", ["jpeg", "png", "tiff", "npy"])
def test_every_kind_becomes_the_same_small_picture(kind: Any) -> None:
    data = npy(picture()) if kind == "npy" else saved(picture(), kind)
    sample = prepare(f"a/b.{kind}", data, kind, recipe_of("20x30", "auto", 90))
    assert sample.array is not None
    assert (sample.array.shape, sample.ending) == ((20, 30, 3), "bin")
    assert bytes(sample.data) == sample.array.tobytes()
    wanted = np.asarray(Image.fromarray(picture()).resize((30, 20), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(sample.array.astype(int) - wanted).max() <= 24  # JPEG's losses, and how each library scales
    assert np.abs(sample.array.astype(int) - wanted).mean() <= 4


def test_the_shorter_side_keeps_the_shape() -> None:
    sample = prepare("a.png", saved(picture(), "png"), "png", recipe_of("20", "jpeg", 90))
    assert simplejpeg.decode_jpeg(bytes(sample.data)).shape == (20, 30, 3)


def test_sixteen_bits_become_eight_by_their_upper_half() -> None:
    deep = (np.arange(64, dtype=np.uint16).reshape(8, 8) * 1024).astype(np.uint16)
    sample = prepare("a.tiff", saved(deep, "tiff"), "tiff", recipe_of("0", "raw", 90))
    assert sample.array is not None
    assert (sample.array == deep >> 8).all()


def test_a_file_that_is_kept_is_not_looked_into() -> None:
    sample = prepare("x/y.Z", memoryview(b"anything"), "file", recipe_of("0", "auto", 90))
    assert sample == PackedSample("x/y.Z", memoryview(b"anything"), "z")


@pytest.mark.parametrize("kind", ["jpeg", "png", "tiff", "npy"])
def test_what_is_damaged_is_said(kind: Any) -> None:
    right = bytes(npy(picture()) if kind == "npy" else saved(picture(), kind))
    for wrong in (b"", b"garbage", right[: len(right) // 2]):
        with pytest.raises(DamagedError):
            prepare("a", memoryview(wrong), kind, recipe_of("20x30", "auto", 90))


@pytest.mark.parametrize("resize", ["x", "-1", "0x5"])
def test_a_size_that_is_none(resize: str) -> None:
    with pytest.raises(UserError, match=r"resize is .*224x224"):
        recipe_of(resize, "auto", 90)


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


def arrays(count: int, shape: tuple[int, ...] = (4, 5, 3)) -> list[PackedSample]:
    made = [np.random.default_rng(number).integers(0, 256, shape, np.uint8) for number in range(count)]
    return [PackedSample(f"d/{i}.png", array.reshape(-1).data, "bin", array) for i, array in enumerate(made)]


def test_npz_is_read_by_numpy() -> None:
    samples = arrays(3)
    with np.load(io.BytesIO(packed("npz", samples)[0])) as archive:
        assert archive["x"].shape == (4, 5, 3, 3)
        for number, sample in enumerate(samples):
            assert (archive["x"][..., number] == sample.array).all()
    with pytest.raises(ValueError, match=r"\(2, 2, 3\) next to one of uint8 \(4, 5, 3\)"):
        packed("npz", [*samples, *arrays(1, (2, 2, 3))])


@pytest.mark.parametrize("sizes", [(7, 7, 7), (1, 900, 30)])
def test_parquet_is_read_by_pyarrow(sizes: tuple[int, ...]) -> None:
    samples = [PackedSample("a.jpg", memoryview(bytes([i]) * size), "jpg") for i, size in enumerate(sizes)]
    rows = pq.read_table(io.BytesIO(packed("parquet", samples)[0]))["data"].to_pylist()
    assert rows == [bytes(sample.data) for sample in samples]


def test_a_tar_is_read_by_tarfile_and_names_say_the_source() -> None:
    names = ["a/cat.1.jpg", "a/cat_1.jpg", "b/dog.jpg"]
    samples = [PackedSample(name, memoryview(name.encode() * 200), "jpg") for name in names]
    with tarfile.open(fileobj=io.BytesIO(packed("webdataset", samples)[0])) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == ["a_cat_1.jpg", "a_cat_1_1.jpg", "b_dog.jpg"]
        for member, sample in zip(members, samples, strict=True):
            file = archive.extractfile(member)
            assert file is not None
            assert file.read() == sample.data


@pytest.mark.parametrize("name", ["tfrecord", "webdataset"])
@given(sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=12))
@example(sizes=[1, 0, 0, 1025])  # as a tar, 4 x 1,024 bytes in all, and the second and third together 1,024
def test_samples_of_any_sizes_are_found_again(name: str, sizes: list[int]) -> None:
    samples = [PackedSample(f"{i}.x", memoryview(bytes([i + 1]) * size), "x") for i, size in enumerate(sizes)]
    data, side = packed(name, samples)
    formats: dict[str, Any] = {"tfrecord": Tfrecord(), "webdataset": Webdataset()}
    source = MemorySource(data)
    opened = formats[name].open(source, len(sizes))
    for number, sample in enumerate(samples):
        assert bytes(opened.sample(number).payload) == bytes(sample.data)
    if name == "tfrecord":
        places = [tuple(map(int, line.split())) for line in side.decode().splitlines()]
        assert sum(size for _, size in places) == len(data)
        assert [struct.unpack_from("<Q", data, at)[0] + 16 for at, _ in places] == [size for _, size in places]


def test_a_tar_of_several_members_a_sample() -> None:
    """As WebDataset's own writer makes them, with a pax header of a long name between."""
    out = io.BytesIO()
    long = "n" * 150
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in (("0.jpg", b"J" * 700), ("0.cls", b"5"), (f"{long}.jpg", b"K" * 10), ("2.jpg", b"L")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    opened = Webdataset().open(MemorySource(out.getvalue()), 3)
    first = bytes(opened.sample(0).payload)
    assert (first[:700], first[-1:], len(first)) == (b"J" * 700, b"5", 1024 + 512 + 1)
    assert bytes(opened.sample(1).payload) == b"K" * 10
    assert bytes(opened.sample(2).payload) == b"L"


def test_which_files_are_packed(tmp_path: Path) -> None:
    for name in ("b/2.PNG", "a/1.jpg", ".hidden.jpg", "notes.txt", "packed/train/x.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    folder, target = str(tmp_path), str(tmp_path / "packed")
    images = images_below(folder, target, recipe_of("8", "auto", 90), Storage())
    assert images.names == ["a/1.jpg", "b/2.PNG"]
    assert (images.kind_of(1), images.ignored) == ("png", 1)
    assert len(images_below(folder, target, recipe_of("0", "auto", 90), Storage()).names) == 3
    with pytest.raises(DatasetError, match="No such file or directory: wanted a folder"):
        images_below(target + "/none", target, recipe_of("0", "auto", 90), Storage())


def made(number: int, samples: int, content: bytes = b"") -> PackedFile:
    crc32 = zlib.crc32(content)
    return PackedFile(number=number, samples=samples, source_bytes=9, bytes=len(content), crc32=crc32, payload_bytes=1)


def test_a_torn_journal_tells_of_the_whole_lines(tmp_path: Path) -> None:
    packed_set = PackedSet(about={"source": "s"}, format="tfrecord", ending="tfrecord", files=3, images_per_file=4)
    lines = [json.dumps(item, default=vars) for item in (packed_set, made(0, 4), made(2, 1))]
    (tmp_path / JOURNAL_NAME).write_text("\n".join(lines)[:-9])
    there = read_set(str(tmp_path), Storage())
    assert there is not None
    assert ([file.number for file in there.made], there.missing(), there.complete) == ([0], [1, 2], False)


def test_verify_names_each_file_that_is_wrong(tmp_path: Path) -> None:
    contents = [b"first" * 100, b"second" * 100, b"third" * 100, b"fourth" * 100]
    files = tuple(made(number, 1, content) for number, content in enumerate(contents))
    packed_set = PackedSet(
        about={}, format="tfrecord", ending="tfrecord", files=4, images_per_file=1, complete=True, made=files
    )
    layout = layout_of(str(tmp_path), packed_set)
    Path(layout.folder).mkdir()
    for number, content in enumerate(contents):
        Path(layout.path(number)).write_bytes(content)
    write_set(str(tmp_path), packed_set, Storage())
    assert verify_set(str(tmp_path), Storage()) == []
    Path(layout.path(0)).write_bytes(contents[0][:-1])
    Path(layout.path(1)).write_bytes(b"X" + contents[1][1:])
    Path(layout.path(3)).unlink()
    assert [(finding.path, finding.kind) for finding in verify_set(str(tmp_path), Storage())] == [
        (layout.path(0), "truncated"),
        (layout.path(1), "changed"),
        (layout.path(3), "missing"),
    ]


@pytest.mark.parametrize("link", ["train", "index"])
def test_behind_a_link_nothing_is_removed(link: str, tmp_path: Path) -> None:
    folder, behind = tmp_path / "set", tmp_path / "behind"
    for top in (folder, behind):
        for below in ("train", "index/train"):
            (top / below).mkdir(parents=True)
            (top / below / f"img_0_of_1.tfrecord{'.idx' * (below != 'train')}").write_bytes(b"theirs")
    (folder / link).rename(folder / "moved")
    (folder / link).symlink_to(behind / link)
    packed = PackedSet(about={}, format="tfrecord", ending="tfrecord", files=1, images_per_file=1, complete=True)
    write_set(str(folder), packed, Storage())
    remove_set(str(folder), Tfrecord, Storage())
    assert sorted(path.name for path in behind.rglob("img*")) == ["img_0_of_1.tfrecord", "img_0_of_1.tfrecord.idx"]
    (folder / link).unlink()
    (folder / "moved").rename(folder / link)
    remove_set(str(folder), Tfrecord, Storage())
    assert not folder.exists()


@pytest.mark.parametrize("call", ["unlink", "scandir", "open"])
def test_a_set_that_a_failing_disk_keeps_is_named_and_goes_later(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "set"
    packed = PackedSet(about={}, format="tfrecord", ending="tfrecord", files=2, images_per_file=1, complete=True)
    paths = [Path(layout_of(str(folder), packed).path(number)) for number in range(2)]
    paths[0].parent.mkdir(parents=True)
    for path in paths:
        path.write_bytes(b"ours")
    write_set(str(folder), packed, Storage())
    fails = {"unlink": paths[0], "scandir": paths[0].parent, "open": folder / "packed.json"}[call]
    works = getattr(os, call)

    def fail(path: Any, *words: Any, **more: Any) -> Any:
        if str(path) == str(fails):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return works(path, *words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(UserError, match=f"{fails} can't be .*: Input/output error"):
            remove_set(str(folder), Tfrecord, Storage())
    assert paths[0].exists()
    assert paths[1].exists() == (call != "unlink")
    remove_set(str(folder), Tfrecord, Storage())
    assert not folder.exists()


def stated_size(kind: str) -> bytes:
    """Return a picture of a few bytes whose header states 60,000 x 60,000 pixels."""
    right = bytearray(npy(picture()) if kind == "npy" else saved(picture(), kind))
    if kind == "png":
        right[16:24] = struct.pack(">II", 60_000, 60_000)
        right[29:33] = struct.pack(">I", zlib.crc32(right[12:29]))
    elif kind == "jpeg":
        begin = right.index(b"\xff\xc0") + 5
        right[begin : begin + 4] = struct.pack(">HH", 60_000, 60_000)
    elif kind == "tiff":
        for tag in (256, 257):  # width, height
            at = right.index(struct.pack("<HH", tag, 4), 4)
            right[at + 8 : at + 12] = struct.pack("<I", 60_000)
    else:
        return bytes(right).replace(b"(60, 90, 3), }        ", b"(60000, 60000, 3), }  ")
    return bytes(right)


@pytest.mark.parametrize("kind", ["jpeg", "png", "tiff", "npy"])
def test_a_header_that_states_a_picture_larger_than_memory_is_damage_like_any_other(kind: Any) -> None:
    with pytest.raises(DamagedError, match=r"60,000 x 60,000 pixels|\(60000, 60000, 3\)"):
        prepare("a", memoryview(stated_size(kind)), kind, recipe_of("20x30", "auto", 90))


@given(st.integers(1, 20_000), st.integers(1, 64))
def test_images_are_shared_out_evenly_where_a_number_near_by_divides_them(images: int, processes: int) -> None:
    each = choose_images_per_file(images, processes, 0)
    wanted = max(1, min(images // (FILES_PER_PROCESS * processes), MAX_IMAGES_PER_FILE))
    divides = [n for n in range(1, MAX_IMAGES_PER_FILE + 1) if images % n == 0 and wanted <= 2 * n <= 4 * wanted]
    assert images % each == 0 if divides else each == wanted
    assert choose_images_per_file(images, processes, 50) == 50
    assert wanted <= 2 * each <= 4 * wanted
