"""What a recipe holds, and what it never does; the self-check; data files told from others."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from datagen.errors import UserError
from dlemu.config import load
from dlemu.config.duration import Duration, mean_seconds
from dlemu.contrib.record.answer import Recording, Replay, Spread
from dlemu.contrib.record.data_seen import cached_before, data_notes, data_of, data_problems
from dlemu.contrib.record.recipe import duration, recipe_text, simplified, workload_of
from dlemu.contrib.record.recording import analyse
from dlemu.contrib.record.self_check import _counted, _overrides, check_by_replay, core_waits, verdict
from dlemu.contrib.record.tests.made_rows import MS, Trainer, steady

SECRETS = ("alice", "acme", "tumour", "patient", "build-host-7")


def recorded(**changes: object) -> Recording:
    trainer = Trainer()
    number = trainer.begin()
    for place in range(80):
        trainer.batch(number, 0.2, 30 + place % 7, save_ms=50 if place in (29, 59) else 0)
    trainer.over(number)
    return replace(analyse(trainer.processes, 10), **changes)  # type: ignore[arg-type]  # fields of it


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
    recording = recorded(
        torch="2.4.0+acme.build-host-7", python="3.10.2", opens_per_sample=1.0, read_bytes_per_sample=110_000.0
    )
    data = data_of(files(tmp_path), recording)
    assert data is not None
    assert (data.files, data.format, data.samples_per_file, data.is_whole) == (80, "jpeg", 1.0, True)
    assert data.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.jpg")), "of the whole folder"
    replay = Replay(
        folder="replay-1",
        engine="fast",
        samples_per_second=200.123456,
        wait_p50=0.001,
        wait_p99=0.02,
        hand_over=0.001,
        calls_per_sample=2.0,
        device_bytes_per_sample=0.0,
        worker_cpu_per_sample=0.002,
    )
    text = recipe_text(recording, data, engine="fast", replayable=True, reason="", replay=replay)
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
    assert (tree["recorded"]["torch"], tree["recorded"]["replayable"]) == ("2.4.0", True)
    assert tree["checkpoint"]["steps_between_checkpoints"] == 30


@pytest.mark.parametrize(("device", "unknown"), [(0.0, True), (2_000.0, True), (110_000.0, False), (44_000.0, False)])
def test_on_storage_whose_bytes_the_kernel_does_not_count_nothing_is_said_to_come_from_memory(
    device: float, unknown: bool, tmp_path: Path
) -> None:
    recording = recorded(opens_per_sample=1.0, read_bytes_per_sample=110_000.0, device_bytes_counted=False)
    recording = replace(recording, device_bytes_per_sample=device)
    data = data_of(files(tmp_path), recording)
    assert data is not None
    assert (recording.cached_percent is None) == unknown
    if unknown:
        assert "unknown" in "".join(data_notes(data, recording))
        assert "reader.evict_page_cache=start" in _overrides(recording, data, 10), "a replay is to read from storage"


@pytest.mark.parametrize(("arrays", "tensors"), [(2, 2), (1000, 64), (0, 0)])
def test_batches_cross_in_as_many_tensors_whose_taking_is_not_burned_again(arrays: int, tensors: int) -> None:
    recording = recorded(
        arrays=arrays, shipped_bytes_per_sample=60_012.0, step_cpu=Spread.of([0.003, 0.004]), hand_over_cpu=0.001
    )
    tree = workload_of(recording, None, engine="matched")
    assert (tree["reader"].get("tensors", 0), tree["reader"].get("tensor_bytes")) == (
        tensors,
        60_000 if tensors else None,
    )
    burned = Duration.from_value(tree["train"]["step_cpu_time"], "step_cpu_time")
    assert mean_seconds(burned) == pytest.approx(0.0025 if tensors else 0.0035)


def test_a_time_that_hardly_varies_is_one_number_and_quantiles_hold_their_mean() -> None:
    assert duration(Spread.of([0.02, 0.02, 0.02])) == 0.02
    found = duration(Spread.of([0.0123456789, 0.0123456789, 0.5]))
    assert isinstance(found, dict)
    assert found["seconds"][0] <= found["mean"] <= found["seconds"][-1]
    assert found["seconds"] == sorted(found["seconds"])


def test_a_recipe_is_a_workload_of_dlemus(tmp_path: Path) -> None:
    recording = recorded(opens_per_sample=1.0, read_bytes_per_sample=110_000.0)
    data = data_of(files(tmp_path), recording)
    text = recipe_text(recording, data, engine="matched", replayable=False, reason="it was not replayed", replay=None)
    (tmp_path / "job.yaml").write_text(text)
    workload = load([f"workload={tmp_path / 'job.yaml'}", f"dataset.data_folder={tmp_path}"])
    assert workload.notes == ()
    assert workload.unsupported == ()
    assert mean_seconds(workload.train.computation_time) == pytest.approx(recording.computation.mean)
    assert workload.recorded.reason == "it was not replayed"


def test_samples_of_shards_and_of_mapped_tokens_are_counted_by_what_is_known(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"shard{number}.tar").write_bytes(bytes(10_000))
    (tmp_path / "tokens.bin").write_bytes(bytes(81_920))
    shards = Counter(str(tmp_path / f"shard{number}.tar") for number in range(2))
    recording = recorded(opens_per_sample=0.01, read_bytes_per_sample=1000.0)
    by_bytes = replace(recording, loading=replace(recording.loading, samples=None))
    by_length = replace(recording, loading=replace(recording.loading, samples=200))
    found = [data_of(shards, one) for one in (by_bytes, by_length)]
    assert [one and (one.files, one.samples_per_file, one.format) for one in found] == [
        (4, 10.0, "webdataset"),
        (4, 50.0, "webdataset"),
    ]
    tokens = data_of(
        Counter([str(tmp_path / "tokens.bin")]), replace(recording, mapped=True, read_bytes_per_sample=4096.0)
    )
    assert tokens is not None
    assert (tokens.files, tokens.samples_per_file, tokens.format) == (1, 20.0, "mmap_indexed_binary")


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


@pytest.mark.parametrize(("read_of_row", "samples"), [(0.99, 100), (1.02, 100), (0.9, 111)])
def test_rows_of_parquet_are_counted_unless_some_columns_are_not_read(
    tmp_path: Path, read_of_row: float, samples: int
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    random = np.random.default_rng(1)
    for number in range(2):
        table = arrow.table({"image": [random.bytes(10_000) for _ in range(100)]})
        parquet.write_table(table, tmp_path / f"{number}.parquet", row_group_size=20)
    row_bytes = (tmp_path / "0.parquet").stat().st_size / 100
    read = recorded(opens_per_sample=0.01, read_bytes_per_sample=read_of_row * row_bytes)
    recording = replace(read, loading=replace(read.loading, samples=None))
    data = data_of(Counter(map(str, tmp_path.iterdir())), recording)
    assert data is not None
    assert workload_of(recording, data, engine="matched")["dataset"]["num_samples_per_file"] == samples


def test_files_that_another_library_maps_have_samples_of_their_size_by_the_datasets_length(tmp_path: Path) -> None:
    """Arrow's, as of HF's datasets: neither calls nor NumPy tell what a sample reads."""
    for number in range(2):
        (tmp_path / f"data-{number}.arrow").write_bytes(bytes(400_000 * (number + 1)))
    recording = recorded(opens_per_sample=0.0, mapped=True, read_bytes_per_sample=0.0)
    recording = replace(recording, loading=replace(recording.loading, samples=300))
    data = data_of(Counter(map(str, tmp_path.iterdir())), recording)
    assert data is not None
    assert (data.format, data.samples_per_file) == ("mmap_indexed_binary", 150.0)
    assert not list(data_problems(data, recording))
    dataset = workload_of(recording, data, engine="matched")["dataset"]
    assert (dataset["record_length_bytes"], dataset["num_samples_per_file"]) == (4000, 150)
    assert "record_length_bytes_quantiles" not in dataset
    no_length = replace(recording, loading=replace(recording.loading, samples=None))
    assert "how many bytes a sample has is not known" in next(data_problems(data, no_length))
    read_before = replace(recording, read_before_bytes=1_100_000)
    assert "read 1 MB before the measured batches, and nothing since" in next(data_problems(data, read_before))


def test_what_a_replay_could_not_do_is_said(tmp_path: Path) -> None:
    recording = recorded(opens_per_sample=1.7, read_bytes_per_sample=110_000.0)
    (problem,) = data_problems(data_of(files(tmp_path), recording), recording)
    assert problem.startswith("its samples are read from 1.7 files on average")
    assert "in a way that the recorder does not see" in next(data_problems(None, recording))


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
    tree = yaml.safe_load(recipe_text(recording, data, engine="matched", replayable=False, reason="none", replay=None))
    assert tree["reader"]["batch_size"] == 2 * recording.read_batch_size
    assert mean_seconds(Duration.from_value(tree["reader"]["preprocess_time"], "preprocess_time")) == pytest.approx(
        recording.preprocess.mean / 2
    )
    assert tree["dataset"]["record_length_bytes"] == 60_000
    assert tree["dataset"]["record_length_bytes_resize"] == 40_000
    assert tree["recorded"]["files_per_sample"] == 2
    (note,) = simplified(recording, data)
    assert "from 2 files (.jpg, .png)" in note


def test_pieces_of_the_size_read_stand_for_parts_of_records(tmp_path: Path) -> None:
    """80 pictures of about 110 kB, of which the job reads 11 kB each."""
    recording = recorded(opens_per_sample=1.0, read_bytes_per_sample=11_000.0)
    data = data_of(files(tmp_path), recording)
    assert data is not None
    assert (data.files, data.format, data.samples_per_file) == (80, "indexed_binary", data.bytes / 80 // 11_000)
    assert not list(data_problems(data, recording))
    tree = yaml.safe_load(recipe_text(recording, data, engine="matched", replayable=False, reason="none", replay=None))
    assert (tree["dataset"]["record_length_bytes"], tree["dataset"]["num_samples_per_file"]) == (
        11_000,
        data.samples_per_file,
    )
    assert "record_length_bytes_quantiles" not in tree["dataset"]
    assert "11,000 bytes" in next(simplified(recording, data))


def test_a_dataset_is_found_through_links_and_without_hidden_files(tmp_path: Path) -> None:
    stored, folder = tmp_path / "store" / "a" / "b", tmp_path / "data" / "train"
    for below in (stored, folder):
        below.mkdir(parents=True)
    (folder / "kind").symlink_to(stored)
    (stored / "up").symlink_to(folder)  # a loop
    for name in ("0.jpg", "1.jpg", ".2.jpg"):
        (stored / name).write_bytes(bytes(1000))
    (stored / ".cache").mkdir()
    (stored / ".cache" / "3.jpg").write_bytes(bytes(1000))
    opened = str(folder / "kind" / "0.jpg")
    held_open = str(stored / "0.jpg")  # as the kernel names a file that stays open
    recording = recorded(opens_per_sample=1.0, read_bytes_per_sample=1000.0)
    data = data_of(Counter([opened, held_open]), recording)
    assert data is not None
    assert (data.folder, data.files, data.bytes) == (str(folder / "kind"), 2, 2000)


def test_a_folder_that_results_could_not_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"b\xe4r")
    folder.mkdir()
    (folder / "0.jpg").write_bytes(bytes(1000))
    with pytest.raises(UserError, match="give a link to it"):
        data_of(Counter([str(folder / "0.jpg")]), recorded())


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


def test_what_the_warm_up_loaded_is_not_new_to_the_measured_batches(tmp_path: Path) -> None:
    """Three passes over 80 files, of which memory held half; of the first pass, 32 samples are not measured."""
    recording = recorded(opens_per_sample=1.0, read_bytes_per_sample=110_000.0, steps=26, samples_before=32)
    recording = replace(recording, device_bytes_per_sample=24 / 208 * 110_000)
    data = data_of(files(tmp_path), recording)
    assert data is not None
    assert cached_before(data, recording) == pytest.approx(50, abs=1)


def test_batches_of_a_replay_count_from_the_request_from_which_those_of_the_job_do() -> None:
    trainer = Trainer()
    steady(trainer, 30, wait_ms=10, body_ms=5)
    assert list(_counted(trainer.processes, 12)) == trainer.worker.fetches[12:]
    assert analyse(trainer.processes, 10).samples_before == 8 * 12, "10 and the two that were loaded ahead"
    assert len(_counted(trainer.processes, 40)) == 30


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


def test_calls_that_are_all_large_are_alike_for_a_device() -> None:
    """Whole row groups by one call, or by three: the kernel's read-ahead makes the requests."""
    recording = recorded(calls_per_sample=0.01, worker_cpu_per_sample=0.001, preprocess=Spread.of([0.001]))
    recording = replace(recording, read_bytes_per_sample=32_768.0)
    _, engine, replays = check_by_replay(recording, Storage({"matched": 0.1}, 0.0))
    assert (engine, len(replays)) == ("matched", 1)


def test_what_a_batch_costs_the_trainer_to_take_over_is_part_of_the_step() -> None:
    class Slower(Storage):
        def __call__(self, recording: Recording, engine: str, name: str) -> Replay:
            return replace(super().__call__(recording, engine, name), hand_over=0.0002)

    recording = recorded(calls_per_sample=2.0, worker_cpu_per_sample=0.001, preprocess=Spread.of([0.001]))
    recording = replace(recording, hand_over=0.0012)
    fitted, _, replays = check_by_replay(recording, Slower({"matched": 2.0}, 0.0))
    assert fitted.computation.mean == pytest.approx(recording.computation.mean + 0.001)
    assert len(replays) == 2
    ahead, _, _ = check_by_replay(replace(recording, synchronous=False), Slower({"matched": 2.0}, 0.0))
    assert ahead.computation == recording.computation


def test_a_trainers_waits_for_a_core_are_no_part_of_receiving_a_batch() -> None:
    """The recording leaves them out; a replay that had them in it would shorten the step by them."""
    busy, other = Trainer(), Trainer(pid=101)
    other.now = 3 * MS
    for trainer, queued_ms in ((busy, 9), (other, 4)):
        steady(trainer, 2, wait_ms=10, body_ms=5)
        for batch in trainer.rows.batches:
            batch.queue1 = batch.queue0 + queued_ms * MS
    asked, got = (np.array([getattr(batch, name) for batch in busy.rows.batches]) for name in ("t0", "t1"))
    assert list(core_waits([busy.rows, other.rows], asked, got)) == [9 * MS, 9 * MS]
    assert list(core_waits([busy.rows], asked + 100 * MS, got + 100 * MS)) == [0, 0], "no batch of these requests"
    assert list(core_waits([], asked, got)) == [0, 0]


def test_a_step_that_is_nothing_has_no_cpu_time() -> None:
    recording = recorded(step_cpu=Spread.of([0.003, 0.004]))
    tree = workload_of(replace(recording, computation=recording.computation.longer(-1.0)), None, engine="fast")
    assert (tree["train"]["computation_time"], tree["train"]["step_cpu_time"]) == (0.0, 0.0)


def test_a_recipe_is_relied_on_only_where_its_replay_is_the_job() -> None:
    recording = recorded(samples_per_second=200.0, read_bytes_per_sample=1000.0, device_bytes_per_sample=1000.0)
    good = Storage({"fast": 2.0}, 0.0)(recording, "fast", "replay-1")
    assert verdict(recording, (), good) == ""
    assert "differs by +6.0 % in samples/s" in verdict(recording, (), replace(good, samples_per_second=212.0))
    off = replace(good, device_bytes_per_sample=500.0)
    assert "differs by 50 % in bytes from devices" in verdict(recording, (), off)
    assert "the recorder saw 94.0 %" in verdict(replace(recording, coverage_percent=94.0), (), good)
    assert verdict(recording, ("several loaders",), good) == "several loaders"
    assert verdict(recording, (), None) == "it was not replayed"
