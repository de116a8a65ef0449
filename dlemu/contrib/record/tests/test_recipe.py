"""What a recipe holds, and what it never does; the self-check; data files told from others."""

from __future__ import annotations

import getpass
import io
import re
import socket
import struct
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from datagen.formats.tfrecord import masked_crc
from dlemu.cli.workloads import _rows
from dlemu.config import load
from dlemu.config.duration import Duration, mean_seconds
from dlemu.contrib.record.answer import Data, RecordAnswer, Recording, Replay, Spread
from dlemu.contrib.record.data_seen import MAPPED, cached_before, data_notes, data_of, data_problems, dataset_of
from dlemu.contrib.record.recipe import recipe_text, simplified, workload_of
from dlemu.contrib.record.recording import analyse
from dlemu.contrib.record.self_check import _overrides, check_by_replay, verdict
from dlemu.contrib.record.tests.made_rows import Trainer
from dlemu.jobs.training.wording import recording_notes

SECRETS = ("alice", "acme", "tumour", "patient", "build-host-7")


def recorded(**changes: object) -> Recording:
    trainer = Trainer()
    number = trainer.begin()
    for place in range(80):
        trainer.batch(number, 0.2, 30 + place % 7, save_ms=50 if place in (29, 59) else 0)
    trainer.over(number)
    return replace(analyse(trainer.processes, 10), **changes)  # type: ignore[arg-type]  # fields of it


def recipe_of(recording: Recording, data: Data | None, **verdict: Any) -> str:
    return recipe_text(RecordAnswer(complete=True, recording=recording, data=data, **verdict), "matched")


def files(tmp_path: Path) -> Counter[str]:
    """Class folders of pictures beside code and weights, all with names of their owner's."""
    random, found = np.random.default_rng(3), Counter[str]()
    folder = tmp_path / "home" / "alice" / "acme-tumours" / "train"
    for kind in ("benign", "patient-hostile"):
        (folder / kind).mkdir(parents=True)
        for number in range(40):
            path = folder / kind / f"patient{number}.jpg"
            path.write_bytes(bytes(int(random.integers(90_000, 130_000))))
            if number % 4 == 0:
                found[str(path)] += 1
    for name in ("acme.safetensors", "labels.json"):
        (tmp_path / name).write_bytes(bytes(10**6))
        found[str(tmp_path / name)] += 1
    return found


def test_a_recipe_names_nobody_and_rounds_sizes_but_not_means_of_times(tmp_path: Path) -> None:
    recording = recorded(opens_per_sample=1.0, read_bytes_per_sample=110_000.0)
    data = data_of(files(tmp_path), recording)
    assert data is not None
    assert (data.files, data.format, data.samples_per_file) == (80, "jpeg", 1.0)
    assert data.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.jpg")), "of the whole folder"
    replay = Storage({"fast": 2.0}, 0.0, rate=200.123456)(recording, "fast", "replay-1")
    text = recipe_of(recording, data, replayable=True, replays=(replay,))
    assert len(text) < 8000, "a lawyer reads it"
    own = [*SECRETS, str(tmp_path), socket.gethostname(), *([] if getpass.getuser() == "root" else [getpass.getuser()])]
    assert not [word for word in own if word.lower() in text.lower()]
    assert not re.search(r"/\w+/", text.replace("/mnt/drive/data", "")), "no path"
    tree = yaml.safe_load(text)
    assert tree["train"]["computation_time"]["mean"] == recording.computation.mean
    assert tree["train"]["computation_time"]["type"] == "empirical"
    assert len(tree["train"]["computation_time"]["seconds"]) == 33
    assert tree["dataset"]["record_length_bytes"] == float(f"{data.bytes / 80:.3g}")
    sizes = tree["dataset"]["record_length_bytes_quantiles"]
    assert sizes == sorted(sizes)
    assert all(size == float(f"{size:.3g}") for size in sizes)
    assert tree["recorded"]["replayable"] is True
    assert tree["checkpoint"]["steps_between_checkpoints"] == 30


def test_samples_of_shards_are_counted_by_what_is_known(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"shard{number}.tar").write_bytes(bytes(10_000))
    shards = Counter(str(tmp_path / f"shard{number}.tar") for number in range(2))
    recording = recorded(opens_per_sample=0.01, read_bytes_per_sample=1000.0)
    by_bytes = replace(recording, loading=replace(recording.loading, samples=None))
    by_length = replace(recording, loading=replace(recording.loading, samples=200))
    found = [data_of(shards, one) for one in (by_bytes, by_length)]
    assert [one and (one.files, one.samples_per_file, one.format) for one in found] == [
        (4, 10.0, "webdataset"),
        (4, 50.0, "webdataset"),
    ]


@pytest.mark.parametrize(("samples", "epochs"), [(200, 3), (25, 24), (4, 72)])
def test_a_replay_has_as_many_epochs_as_its_steps_take(samples: int, epochs: int, tmp_path: Path) -> None:
    """72 steps: 60 measured, 10 of warm-up, and 2 that the worker reads ahead; a pass has 25, 3 or 1 of them."""
    for number in range(4):
        (tmp_path / f"shard{number}.tar").write_bytes(bytes(10_000))
    recording = recorded(opens_per_sample=0.01, read_bytes_per_sample=40_000 / samples, steps=60)
    recording = replace(recording, loading=replace(recording.loading, samples=samples))
    data = data_of(Counter(map(str, tmp_path.iterdir())), recording)
    assert data is not None
    assert data.samples_per_file == samples / 4
    assert workload_of(recording, data, engine="matched")["dataset"]["num_samples_per_file"] == samples // 4
    words = [word for word in _overrides(recording, data, 10) if word.startswith("train.")]
    assert words == [f"train.epochs={epochs}", "train.total_training_steps=72"]


def test_samples_of_several_files_are_replayed_file_by_file(tmp_path: Path) -> None:
    """An image and its mask, of kinds of their own: half as much of everything for each file, twice as many of them."""
    for number in range(30):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(100_000))
        (tmp_path / f"{number}.png").write_bytes(bytes(20_000))
    (tmp_path / "classes.json").write_bytes(bytes(500_000))
    opened = Counter(map(str, sorted(tmp_path.iterdir())))
    recording = recorded(opens_per_sample=2.0, read_bytes_per_sample=120_000.0, shipped_bytes_per_sample=80_000.0)
    data = data_of(opened, recording)
    assert data is not None
    assert (data.files, data.format, data.ending, data.samples_per_file) == (60, "raw", ".jpg, .png", 1.0)
    assert not list(data_problems(data, recording))
    tree = yaml.safe_load(recipe_of(recording, data))
    assert tree["reader"]["batch_size"] == 2 * recording.batch_size
    assert mean_seconds(Duration.from_value(tree["reader"]["preprocess_time"], "preprocess_time")) == pytest.approx(
        recording.preprocess.mean / 2
    )
    assert tree["dataset"]["record_length_bytes"] == 60_000
    assert tree["dataset"]["record_length_bytes_resize"] == 40_000
    (note,) = simplified(recording, data)
    assert "from 2 files (.jpg, .png)" in note


@pytest.mark.parametrize(
    ("endings", "opens", "found"),
    [
        ((".jpg", ".JPEG"), 1.0, (60, "jpeg", ".jpg, .jpeg")),
        ((".png", ".PNG", ".json"), 1.0, (60, "png", ".png")),
        ((".tif", ".tiff", ".TIFF"), 1.0, (90, "tiff", ".tiff, .tif")),
        ((".tar", ".TAR", ".csv"), 0.01, (60, "webdataset", ".tar")),
        ((".h5", ".hdf5"), 0.1, (60, "indexed_binary", ".h5, .hdf5")),
        ((".jpg", ".png", ".webp", ".txt"), 1.0, (90, "raw", ".jpg, .png, .webp")),
        ((".jpg", ".jpeg", ".png", ".PNG"), 2.0, (120, "raw", ".jpg, .jpeg, .png")),
        ((".pt", ".pth"), 1.0, (60, "raw", ".pt, .pth")),
    ],
)
def test_files_of_one_format_are_one_dataset_however_their_names_end(
    endings: tuple[str, ...], opens: float, found: tuple[int, str, str], tmp_path: Path
) -> None:
    for number in range(30):
        for ending in endings:
            (tmp_path / f"{number}{ending}").write_bytes(bytes(1000))
    paths = Counter(str(path) for path in sorted(tmp_path.iterdir()) if path.suffix != ".csv" or path.stem == "7")
    recording = recorded(opens_per_sample=opens, read_bytes_per_sample=1000.0 * opens)
    data = data_of(paths, replace(recording, loading=replace(recording.loading, samples=None)))
    assert data is not None
    assert (data.files, data.format) == found[:2]
    assert set(data.ending.split(", ")) == set(found[2].split(", "))


ROWS, LARGE = {"opens_per_sample": 0.01, "calls_per_sample": 1.0}, {"files": 100, "size": 99_800}
MAPS = {"maps_files": True, "opens_per_sample": 1.0, "calls_per_sample": 12.0}
ARROW = MAPS | {"opens_per_sample": 0.0}


@pytest.mark.parametrize(
    ("files", "changes", "found"),
    [  # the format, the bytes of a record, those of the job's reads
        ({"size": 160_000}, ROWS | {"read": 160, "shipped": 160}, ("indexed_binary", 160)),  # by pread
        ({"size": 200_000}, ROWS | {"read": 4096, "shipped": 200}, ("indexed_binary", 4096)),  # by a buffered file
        ({"size": 60_000}, ROWS | {"read": 61, "shipped": 120}, ("indexed_binary", 61)),  # of bfloat16
        ({"size": 160_000}, ROWS | {"read": 160, "shipped": 160, "device": 4096}, ("indexed_binary", 160)),
        ({"size": 200_000}, ROWS | {"read": 200, "shipped": 200, "mapped": True}, (MAPPED, 200)),
        ({"size": 10**6, "samples": 9}, ARROW | {"read": 4096, "shipped": 16_384, "mapped": True}, (MAPPED, 4096)),
        ({"size": 10**6, "samples": 10**5}, ARROW | {"read": 512, "shipped": 2048, "mapped": True}, (MAPPED, 512)),
        (LARGE, MAPS | {"read": 26_900, "shipped": 98_300}, ("raw", 99_800)),  # torch.load(mmap=True)
        (LARGE | {"size": 3_000_000}, MAPS | {"read": 40_000, "shipped": 2_900_000}, ("raw", 3_000_000)),
        (LARGE | {"ending": ".safetensors"}, MAPS | {"read": 4, "shipped": 199_000}, ("raw", 99_800)),
        (LARGE | {"ending": ".npy"}, MAPS | {"read": 8200, "shipped": 399_000}, ("npy", 99_800)),  # mmap_mode="r"
        (LARGE, MAPS | {"read": 26_900, "shipped": 99_000, "maps_files": False}, ("raw", 99_800)),  # not seen to map
        ({"size": 10**6}, ARROW | {"read": 9, "shipped": 2000}, (MAPPED, 1000)),
        ({"ending": ".jpg"} | LARGE, MAPS | {"read": 99_800, "shipped": 602_000}, ("jpeg", 99_800)),
        (LARGE, {"opens_per_sample": 1.0, "read": 11_000, "shipped": 44_000}, ("indexed_binary", 11_000)),  # a crop
    ],
)  # fmt: skip
def test_bytes_of_a_sample_are_those_that_calls_files_and_tensors_agree_on(
    files: dict[str, Any], changes: dict[str, Any], found: tuple[str, int], tmp_path: Path
) -> None:
    recording, data = bytes_seen(tmp_path, files, changes)
    assert data is not None
    assert recording.problems == tuple(data_problems(data, recording)) == ()
    dataset = workload_of(recording, data, engine="matched")["dataset"]
    assert (dataset["format"], dataset["record_length_bytes"]) == (found[0], pytest.approx(found[1], rel=0.01))


@pytest.mark.parametrize(
    ("files", "changes", "says"),
    [
        (LARGE, MAPS | {"read": 20_000, "shipped": 30_000}, "have 30,000, its files 99,800: its files are mapped"),
        ({"size": 10**6}, ARROW | {"read": 9, "shipped": 80}, "how much of them it reads"),
        ({"size": 10**6}, ROWS | {"read": 5, "shipped": 8000}, "in a way that the recorder does not see"),  # in memory
        ({"size": 10**6, "samples": None}, ARROW | {"read": 9, "shipped": 80}, "has no length"),
    ],
)
def test_bytes_of_a_sample_that_are_not_known_are_a_problem(
    files: dict[str, Any], changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    recording, data = bytes_seen(tmp_path, files, changes)
    (problem,) = (*recording.problems, *data_problems(data, recording))
    assert says in problem


@pytest.mark.parametrize(
    ("file_format", "ending"), [("webdataset", ".tar"), ("webdataset", ".TAR"), ("tfrecord", ".tfrecord")]
)
@pytest.mark.parametrize(("read", "steady"), [(1, True), (1.2, True), (0.17, False), (2, False)])
def test_a_buffer_that_fills_or_drains_does_not_change_the_bytes_of_a_sample(
    file_format: str, ending: str, read: float, steady: bool, tmp_path: Path
) -> None:
    record = bytes(10_000) if file_format == "tfrecord" else b""
    head = struct.pack("<Q", len(record))
    made = head + struct.pack("<I", masked_crc(head)) + record + bytes(4)
    for shard in range(6):
        path = tmp_path / f"{shard}{ending}"
        if record:
            path.write_bytes(made * (40 + shard))
            continue
        with tarfile.open(path, "w") as tar:
            for sample in range(40 + shard):
                for member, size in ((f"{sample}.jpg", 8000), (f"{sample}.json", 50)):
                    entry = tarfile.TarInfo(member)
                    entry.size = size
                    tar.addfile(entry, io.BytesIO(bytes(size)))
    stored = sum(path.stat().st_size for path in tmp_path.iterdir()) / sum(range(40, 46))
    changes = ROWS | {"read": read * stored, "shipped": 16, "calls_per_sample": 8.0}
    recording, data = bytes_seen(tmp_path, {"samples": None, "iterable": True}, changes)
    assert data is not None
    dataset = workload_of(recording, data, engine="matched")["dataset"]
    assert dataset["record_length_bytes"] == pytest.approx(stored, rel=0.02)
    assert (dataset["format"], dataset["num_samples_per_file"]) == (file_format, pytest.approx(42.5, abs=1.5))
    assert ["fills or drains" in problem for problem in recording.problems] == [True] * (not steady)


def bytes_seen(folder: Path, files: dict[str, Any], changes: dict[str, Any]) -> tuple[Recording, Data | None]:
    """Make files as given, if any; return what is known of 1000 samples in one, or of one sample in each."""
    for number in range(files.get("files", 1) if "size" in files else 0):
        (folder / f"{number}{files.get('ending', '.pt')}").write_bytes(bytes(files["size"]))
    sizes = ("read", "shipped", "device")
    recording = recorded(**{f"{key}_bytes_per_sample" if key in sizes else key: changes[key] for key in changes})
    samples, iterable = files.get("samples", 1000), files.get("iterable", False)
    recording = replace(recording, loading=replace(recording.loading, samples=samples, iterable=iterable))
    return dataset_of(Counter(map(str, sorted(folder.iterdir()))), recording)


@pytest.mark.parametrize(
    ("steps", "device_bytes", "cached"),
    [
        (64, 110_000 / 6.4, 0),  # 80 files, which 64 steps of 8 samples read 6.4 times
        (64, 44_000, 0),  # less than it reads again: the page cache did not keep it
        (64, 110_000 / 6.4 / 4, 75),
        (10, 66_000, 40),  # each file at most once
        (10, 105_000, 0),
        (10, 1_000, 100),
    ],
)
def test_what_memory_held_before_the_job_read_it_is_there_for_the_replay(
    steps: int, device_bytes: float, cached: int, tmp_path: Path
) -> None:
    recording = recorded(opens_per_sample=1.0, read_bytes_per_sample=110_000.0, steps=steps, samples_before=0)
    recording = replace(recording, device_bytes_per_sample=device_bytes)
    data = data_of(files(tmp_path), recording)
    assert data is not None
    assert list(data_problems(data, recording)) == []
    held = cached_before(data, recording)
    assert held == pytest.approx(cached, abs=1)  # it is made of rounded shares
    words = {f"reader.page_cache_percent={held}"} if 0 < cached < 100 else set()
    words.add(f"reader.evict_page_cache={'never' if cached == 100 else 'start'}")
    assert {word for word in _overrides(recording, data, 10) if "page_cache" in word} == words
    assert (f"held {held} %" in "".join(data_notes(data, recording))) == (0 < cached < 100)


class Storage:
    """Replays as a storage would: its reader costs CPU, and each engine makes its own calls."""

    def __init__(self, calls: dict[str, float], reader_cpu: float, rate: float = 200.0) -> None:
        self.calls, self.reader_cpu, self.rate = calls, reader_cpu, rate

    def __call__(self, recording: Recording, engine: str, name: str) -> Replay:
        return Replay(
            folder=name,
            engine=engine,
            samples_per_second=self.rate,
            wait_p50=0.0,
            wait_p99=0.0,
            hand_over=0.0,
            calls_per_sample=self.calls[engine],
            device_bytes_per_sample=recording.device_bytes_per_sample,
            worker_cpu_per_sample=recording.preprocess.mean + self.reader_cpu,
        )


def test_the_reader_is_the_one_whose_calls_are_the_jobs_and_what_it_costs_is_not_burned_again() -> None:
    recording = recorded(calls_per_sample=12.6, worker_cpu_per_sample=0.0030, preprocess=Spread.of([0.0025, 0.0027]))
    fitted, engine, replays = check_by_replay(recording, Storage({"matched": 2.8, "library": 12.5}, 0.0010))
    assert (engine, [one.engine for one in replays]) == ("library", ["matched", "library", "library"])
    assert fitted.preprocess.mean == pytest.approx(0.0020)
    assert replays[-1].worker_cpu_per_sample == pytest.approx(0.0030)
    near = recorded(calls_per_sample=2.8, worker_cpu_per_sample=0.0036, preprocess=Spread.of([0.0026]))
    _, engine, replays = check_by_replay(near, Storage({"matched": 2.8}, 0.0010))
    assert (engine, len(replays)) == ("matched", 1)
    _, engine, replays = check_by_replay(recording, Storage({"matched": 11.0, "library": 99.0}, 0.0010))
    assert (engine, replays[-1].engine) == ("matched", "matched")
    _, engine, replays = check_by_replay(recording, Storage({"matched": 2.0}, 0.0), one_engine=True)
    assert {one.engine for one in replays} == {engine} == {"matched"}, "pieces of a user's files have no library"
    _, engine, replays = check_by_replay(near, Storage({"matched": 12.0, "fast": 3.0}, 0.0010))
    assert (engine, replays[1].engine) == ("fast", "fast")


def test_a_job_that_reads_nothing_while_it_trains_is_told_so(tmp_path: Path) -> None:
    recording = recorded(read_bytes_per_sample=0.0)
    for data in (data_of(files(tmp_path), recording), None):
        (problem,) = data_problems(data, recording)
        assert "its samples are in memory" in problem


def test_a_recipe_is_relied_on_only_where_its_replay_is_the_job() -> None:
    recording = recorded(samples_per_second=200.0, read_bytes_per_sample=1000.0, device_bytes_per_sample=1000.0)
    good = Storage({"fast": 2.0}, 0.0)(recording, "fast", "replay-1")
    fast = replace(good, samples_per_second=212.0)
    busy = replace(recording, parts=replace(recording.parts, cpu_queue=recording.parts.step / 8))
    assert verdict(recording, good) == verdict(busy, good) == (True, "")
    for state, says, found in (
        (False, "differs by +6.0 % in samples/s", verdict(recording, fast)),
        (False, "by 50 % in bytes from devices", verdict(busy, replace(good, device_bytes_per_sample=500.0))),
        (False, "the recorder saw 94.0 %", verdict(replace(busy, coverage_percent=94.0), fast)),
        (False, "several loaders", verdict(replace(recording, problems=("several loaders",)), None, "it failed")),
        (None, "by +6.0 % in samples/s: wanted 5 % at most, but other load", verdict(busy, fast)),
        (None, "kept the replay waiting for a core, 30 %", verdict(busy, replace(fast, core_wait_percent=30.0))),
        (None, "it was not replayed", verdict(recording, None)),
        (None, "its replay failed", verdict(recording, None, "its replay failed")),
    ):
        assert found[0] is state
        assert says in found[1]


@pytest.mark.parametrize(
    ("replayable", "shown", "notes"), [(True, "yes", 0), (False, "no", 1), (None, "not verified", 1)]
)
def test_a_recipe_is_a_workload_of_dlemus_and_all_that_read_it_know_three_states(
    replayable: bool | None, shown: str, notes: int, tmp_path: Path
) -> None:
    recording = recorded(opens_per_sample=1.0, read_bytes_per_sample=110_000.0)
    data = data_of(files(tmp_path), recording)
    (tmp_path / "job.yaml").write_text(recipe_of(recording, data, replayable=replayable, reason="so"))
    workload = load([f"workload={tmp_path / 'job.yaml'}", f"dataset.data_folder={tmp_path}"])
    assert (workload.notes, workload.unsupported) == ((), ())
    assert mean_seconds(workload.train.computation_time) == pytest.approx(recording.computation.mean)
    assert (workload.recorded.replayable, workload.recorded.reason) == (replayable, "so")
    assert ("  replayable", shown, "so") in _rows(workload)
    found = list(recording_notes(workload.recorded, 1))
    assert [("not verified: so" in note, "not replayable: so" in note) for note in found] == [
        (replayable is None, replayable is False)
    ] * notes
