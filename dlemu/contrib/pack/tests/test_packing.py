"""Images on their way into packed files, the settings, and what is said of a packing's numbers."""

from __future__ import annotations

import errno
import io
import math
import struct
import tarfile
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from datagen.errors import DatasetError, DlemuError, UserError
from datagen.formats import _picture
from datagen.formats.format_base import PackedSample, Packer
from datagen.registry import companion, find, names
from datagen.storage import memory
from datagen.storage.posix import Storage
from dlemu.config import load
from dlemu.contrib.pack.job import JOB, choose_images_per_file, images_below
from dlemu.contrib.pack.recipe import DamagedError, Recipe, prepare
from dlemu.contrib.pack.settings import PACK_FORMATS, PackSettings
from dlemu.contrib.pack.summary import ADVICE, PackDevice, judge_packing, train_command
from dlemu.contrib.pack.tests.cases import RESULTS
from dlemu.runner.job import JobRequest, run_job
from tests.datagen.sources import records_of
from tests.goldens.render import numbers

RAW_20X30 = Recipe((20, 30), "raw")
PICTURE = Image.linear_gradient("L").resize((90, 60)).convert("RGB")


def saved(picture: Image.Image, kind: str) -> memoryview:
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getbuffer()


@pytest.mark.parametrize("kind", ["jpeg", "png", "tiff"])
def test_every_kind_becomes_the_same_small_picture(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = saved(PICTURE, kind)
    pixels = np.frombuffer(prepare(f"a/b.{kind}", right, RAW_20X30).data, np.uint8).reshape(20, 30, 3).astype(int)
    wanted = np.asarray(PICTURE.resize((30, 20), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(pixels - wanted).max() <= 24  # JPEG's losses, and how each library scales
    assert np.abs(pixels - wanted).mean() <= 4
    for wrong in (b"", b"garbage", right[: len(right) // 2]):
        with pytest.raises(DamagedError) as damaged:
            prepare(f"a.{kind}", memoryview(wrong), RAW_20X30)
        assert " object at 0x" not in str(damaged.value)
    monkeypatch.setattr(_picture, "MAX_PIXELS", 90 * 60 - 1)
    with pytest.raises(DamagedError, match="90 x 60 pixels"):
        prepare(f"a.{kind}", right, RAW_20X30)


def test_a_picture_is_decoded_where_its_bytes_are() -> None:
    large = saved(Image.new("RGB", (1000, 1000)), "tiff")
    prepare("a.tiff", large, RAW_20X30)
    tracemalloc.start()
    prepare("a.tiff", large, RAW_20X30)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < len(large) / 4, "a copy costs as much as decoding: its memory is new for each picture"


def test_the_shorter_side_keeps_the_shape_and_sixteen_bits_their_upper_half() -> None:
    sample = prepare("a.png", saved(PICTURE, "png"), Recipe((20,), "jpeg"))
    assert simplejpeg.decode_jpeg(bytes(sample.data)).shape == (20, 30, 3)
    deep = (np.arange(64, dtype=np.uint16).reshape(8, 8) * 1024).astype(np.uint16)
    sample = prepare("a.tiff", saved(Image.fromarray(deep), "tiff"), Recipe((), "raw"))
    assert (np.frombuffer(sample.data, np.uint8).reshape(8, 8) == deep >> 8).all()
    kept = prepare("x/y.Z", memoryview(b"anything"), Recipe((), "keep"))  # it is not looked into
    assert kept == PackedSample("x/y.Z", memoryview(b"anything"), "z")


def packed(name: str, samples: list[PackedSample]) -> tuple[bytes, bytes]:
    storage = memory.Storage()
    writer = storage.create("x")
    packer: Packer = companion("datagen.formats", name, "Packer")(writer)
    for sample in samples:
        packer.add(sample)
    side = packer.finish()
    writer.commit()
    return storage.files["x"], side


@pytest.mark.parametrize(
    ("sources", "members"),
    [
        (["a/cat.1.jpg", "a/cat_1.jpg", "b/dog.jpg"], ["a_cat_1.jpg", "a_cat_1_1.jpg", "b_dog.jpg"]),
        (["x/a.jpg", "x/a_2.jpg", "x_a.jpg"], ["x_a.jpg", "x_a_2.jpg", "x_a_3.jpg"]),  # equal names would be one sample
        (["画" * 40 + ".jpg", "\udcff.jpg"], ["画" * 26 + ".jpg", "?.jpg"]),
    ],
)
def test_names_in_a_tar_say_the_source(sources: list[str], members: list[str]) -> None:
    samples = [PackedSample(name, memoryview(b"x"), "jpg") for name in sources]
    with tarfile.open(fileobj=io.BytesIO(packed("webdataset", samples)[0])) as archive:
        assert archive.getnames() == members


@pytest.mark.parametrize("name", PACK_FORMATS)
@given(sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=12))
@example(sizes=[1, 0, 0, 1025])  # as a tar, 4 x 1,024 bytes in all, and the second and third together 1,024
def test_samples_of_any_sizes_are_found_again(name: str, sizes: list[int]) -> None:
    samples = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    data, side = packed(name, [PackedSample(f"{i}.x", memoryview(one), "x") for i, one in enumerate(samples)])
    assert records_of(find("datagen.formats", name, "Format")(), data, len(sizes)) == samples
    if name == "tfrecord":
        places = [tuple(map(int, line.split())) for line in side.decode().splitlines()]
        assert sum(size for _, size in places) == len(data)
        assert [struct.unpack_from("<Q", data, at)[0] + 16 for at, _ in places] == [size for _, size in places]


def test_which_files_are_packed(tmp_path: Path) -> None:
    sets = ("packed/packed.json", "packed/train/x.jpg", "b/old/packed.json", "b/old/x.jpg")
    for name in ("b/2.PNG", "a/1.jpg", ".hidden.jpg", "notes.txt", *sets):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert images_below(str(tmp_path), only_images=True) == ["a/1.jpg", "b/2.PNG"]
    assert images_below(str(tmp_path), only_images=False) == ["a/1.jpg", "b/2.PNG", "notes.txt"]
    with pytest.raises(DatasetError, match="No such file or directory: wanted a folder"):
        images_below(f"{tmp_path}/none", only_images=False)


@pytest.mark.parametrize(("images", "each"), [(1, 1), (1000, 125), (1009, 126), (96, 12), (10**7, 1000)])
def test_images_are_shared_out_evenly_where_a_number_near_by_divides_them(images: int, each: int) -> None:
    assert choose_images_per_file(images, 2) == each


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pack.proceses=4"], "proceses"),
        (["pack.images=-1"], "pack.images is -1"),
        (["pack.format=tar"], "wanted one of tfrecord, webdataset"),
        *((["pack.resize=" + sides], "resize is .*224x224") for sides in ("x", "-1", "0x5")),
        (["pack.resize=224", "pack.encode=keep"], "wanted pack.encode=raw or jpeg"),
        (["pack.source=", "workload=unet3d", "storage.storage_type=s3", "storage.storage_root=b"], "is s3: dlemu pack"),
    ],
)
def test_what_nothing_can_be_packed_with(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        JOB.complete(load(["pack.source=/a", "pack.target=/b", *words]))


def test_formats_that_can_be_packed_are_those_with_a_packer() -> None:
    every = names("datagen.formats")
    assert list(PACK_FORMATS) == [name for name in every if companion("datagen.formats", name, "Packer", None)]


@pytest.mark.parametrize(("images", "trained"), [(12, 12), (10, 8), (3, 3), (4, 4), (5, 4)])
def test_the_command_to_train_reads_files_of_equal_length(images: int, trained: int) -> None:
    words = train_command(PackSettings(target="y"), images, 4, 9).split()[2:]
    settings = dict(word.split("=") for word in words)
    assert int(settings["dataset.num_files_train"]) * int(settings["dataset.num_samples_per_file"]) == trained


def test_no_number_of_a_saved_packing_changes() -> None:
    folder = RESULTS["pack"]  # a change that is meant is written by `python -m tests.goldens.write`
    assert numbers(str(folder)) == folder.with_suffix(".json").read_text()


def test_a_packing_takes_as_long_as_on_its_slowest_host_by_that_hosts_own_clock() -> None:
    run = JOB.read(str(RESULTS["pack"]))
    rows, hosts = run.rows.copy(), 2 * run.facts.journal.hosts
    for name in ("began_ns", "ended_ns"):
        rows[name][rows["rank"] == 1] -= 10**15  # booted days later
    facts = replace(run.facts, journal=run.facts.journal.noting(hosts=hosts, rank_nodes=(0, 1)))
    assert replace(run, rows=rows, facts=facts).summary.seconds == pytest.approx(run.summary.seconds, rel=0.05)


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
def test_what_limited(seen: dict[str, float], what: str, advice: str) -> None:
    shares: Any = tuple(seen.get(part, 0.0) for part in ("reading", "computing", "wanting_core", "writing", "idle"))
    host: dict[str, Any] = {"processes": 4, "cores": 8, "host_busy_percent": 40.0, "throttled_percent": math.nan}
    device = PackDevice(mean_depth=seen.get("depth", 8.0), busy_percent=seen.get("busy", 99.0))
    limit = judge_packing(shares, device, own_busy_percent=30.0, **{key: seen.get(key, host[key]) for key in host})
    assert (limit.what, limit.advice) == (what, (ADVICE[advice],))


def pack_one(tmp_path: Path, *words: str) -> None:
    images = tmp_path / "images"
    images.mkdir(exist_ok=True)
    Image.new("RGB", (8, 8)).save(images / "0.png")
    own = (f"pack.source={images}", f"pack.target={tmp_path / 'packed'}", "pack.evict=false", "telemetry.enabled=false")
    request = JobRequest(load=lambda: load([*own, f"output.folder={tmp_path / 'result'}", *words]))
    run_job(request, lambda _: None, JOB)


def test_a_target_that_fails_is_named_and_only_an_image_that_does_not_fit_is_called_so(tmp_path: Path) -> None:
    denied = OSError(errno.EACCES, "Permission denied")
    for call, error, said in (("create", ValueError("a bug"), "a bug"), ("sync", denied, f"{tmp_path}/packed.*denied")):
        with patch.object(Storage, call, side_effect=error), pytest.raises(DlemuError, match=said):
            pack_one(tmp_path, f"output.folder={tmp_path / call}")


@pytest.mark.parametrize("harm", ["a file", "train", "index/train", "a link", "packed.json", "settings"])
def test_what_others_have_in_a_target_stays(harm: str, tmp_path: Path) -> None:
    target, others, words = tmp_path / "packed", tmp_path / "others", [f"output.folder={tmp_path / 'second'}"]
    others.mkdir()
    if harm == "settings":
        pack_one(tmp_path)
        text = (target / "packed.json").read_text().replace('"complete": true', '"complete": false')
        (target / "packed.json").write_text(text)
        words.append("pack.resize=8x8")
    elif harm == "a link":
        target.mkdir()
        (target / "train").symlink_to(others)
    else:
        place = target / harm if harm in ("a file", "packed.json") else target / harm / "img_0_of_1.tfrecord"
        place.parent.mkdir(parents=True)
        place.write_bytes(b"theirs")
        if harm != "a file":
            (target / ".dlemu-owned").write_text('{"dlemu": "", "version": 1}\n')
    before = {path: path.read_bytes() for path in target.rglob("[!.]*") if path.is_file()}
    with pytest.raises(UserError, match="packed"):
        pack_one(tmp_path, *words)
    with JOB.own_place(load([f"pack.target={target}"]), "point-01"):
        pass
    assert {path: path.read_bytes() for path in before} == before
    assert not list(others.iterdir())
