"""From rows to a recording, and from that to a recipe: what counts, what computes, and what is told apart."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from msgspec import structs

from datagen.errors import UserError
from dlemu.config import load
from dlemu.config.duration import Duration, mean_seconds
from dlemu.contrib.record.answer import Data, RecordAnswer, Recording, Replay, Spread
from dlemu.contrib.record.dataset import MAPPED, cached_before, data_notes, data_of, data_problems, recording_and_data
from dlemu.contrib.record.recipe import recipe_text, simplified, workload_of
from dlemu.contrib.record.recording import analyse
from dlemu.contrib.record.replay import _overrides, check_by_replay, verdict
from dlemu.contrib.record.rows import ProcessRows, Step
from dlemu.contrib.record.tests.made_rows import MS, Trainer, steady
from dlemu.jobs.training.wording import recording_notes


def test_neither_a_slow_source_nor_a_busy_host_leaks_into_what_a_step_computes() -> None:
    recordings = [analyse(steady(wait_ms=wait_ms, body_ms=30).processes, 10) for wait_ms in (0.2, 90)]
    assert [one.computation.mean for one in recordings] == pytest.approx([0.030, 0.030], rel=0.001)
    assert ["from all steps" in "".join(one.notes) for one in recordings] == [False, True]
    assert [one.samples_per_second for one in recordings] == pytest.approx([8 / 0.0302, 8 / 0.120], rel=0.001)
    trainer = steady(60, 0.1, 36)
    for place, batch in enumerate(trainer.rows.batches):
        batch.queue0, batch.queue1 = place * 6 * MS, place * 6 * MS
    trainer.rows.pass_ends[0].queue0 = 60 * 6 * MS
    recording = analyse(trainer.processes, 10)
    assert recording.computation.mean == pytest.approx(0.030, rel=0.001)
    assert recording.parts.cpu_queue == pytest.approx(0.006)
    assert recording.parts.step == pytest.approx(0.0361, rel=0.001)


def test_evaluation_within_and_between_epochs_and_a_sanity_check_are_left_out() -> None:
    plain, other = steady(wait_ms=1), Trainer().train(2, 5, 3, steps=0)
    training = other.begin()
    for place in range(60):
        other.batch(training, 1, 20)
        if place == 30:
            other.train(9, 50, 70, steps=0)
    other.over(training)
    expected, found = (analyse(one.processes, 10) for one in (plain, other))
    assert found.steps == expected.steps
    assert found.computation.mean == pytest.approx(expected.computation.mean)
    assert found.samples_per_second == pytest.approx(expected.samples_per_second)


def test_batches_that_share_a_step_are_counted_whether_they_are_asked_for_one_by_one_or_at_once() -> None:
    def last(place: int) -> int:
        return int(place % 4 == 3)

    by_one = steady(80, 0.1, 25, steps=last)
    # As HF's Trainer does: the batches of a group first, then all of its computing.
    at_once = steady(80, 0.1, lambda place: 100 * last(place), steps=last)
    for trainer in (by_one, at_once):
        recording = analyse(trainer.processes, 8)
        assert recording.gradient_accumulation_steps == 4
        assert recording.computation.mean == pytest.approx(0.025, rel=0.01)
        assert recording.computation.quantiles[0] == pytest.approx(0.025, rel=0.01)


def test_loaders_that_one_can_not_stand_for_are_refused() -> None:
    streams, following = Trainer(), Trainer()
    numbers = [streams.begin() for _ in range(2)]
    streams.rows.passes[-1].iterable = True
    for _ in range(40):
        for number in numbers:
            streams.batch(number, 0.1, 25)
    assert any("several loaders" in problem for problem in analyse(streams.processes, 4).problems)
    for batch in (8, 16):
        following.train(40, 0.1, 25)
        following.rows.passes[-1].batch = batch
    assert any("several loaders" in problem for problem in analyse(following.processes, 4).problems)


@pytest.mark.parametrize(("ranks", "began_ns", "several"), [(1, 0, 0), (1, 10**12, 1), (2, 10**12, 0)])
def test_trainers_one_after_another_on_one_clock_are_several_runs(ranks: int, began_ns: int, several: int) -> None:
    trainers = Trainer(ranks=ranks), Trainer(pid=500, ranks=ranks)
    trainers[1].now = began_ns
    processes = [rows for trainer in trainers for rows in trainer.train(60, 0.1, 20).processes]
    assert ["rows of several runs" in problem for problem in analyse(processes, 10).problems] == [True] * several


def test_a_dispatcher_reads_on_rank_0_for_all() -> None:
    """As Accelerate's: rank 0 asks for a batch a rank, puts them together, and sends each its part."""
    first, second = Trainer(ranks=2), Trainer(pid=500, ranks=2)
    first.train(80, 0.1, lambda place: 40 * (place % 2), steps=lambda place: place % 2)
    second.rows.steps = list(first.rows.steps)
    recording = analyse([*first.processes, second.rows], 10)
    assert (recording.ranks, recording.loaders, recording.batch_size) == (2, 1, 8)
    tree = workload_of(recording, None, engine="matched")
    assert (tree["ranks"], tree["reader"]["batch_size"]) == (1, 8)
    waits = recording.parts.step - recording.parts.computing
    rate = 8 / (recording.computation.mean + waits)
    assert rate == pytest.approx(recording.samples_per_second, rel=0.01), "all ranks' samples"
    assert "one rank reads for 2" in " ".join(recording.notes)
    recipe = recipe_text(RecordAnswer(complete=True, recording=recording, data=None), recording, None, "matched")
    assert yaml.safe_load(recipe)["recorded"]["ranks"] == 1, "as many as a replay should have"


def test_the_accelerators_own_clock_goes_before_the_hosts() -> None:
    found = analyse(steady(60, 0.1, 30, device_ms=27.5).processes, 10)
    assert round(found.computation.mean, 6) == 0.0275


def test_checkpoints_are_no_computation() -> None:
    recording = analyse(steady(60, 0.1, 30, save_ms=lambda place: 400 * (place in (19, 39))).processes, 10)
    assert recording.computation.mean == pytest.approx(0.030, rel=0.001)
    assert recording.saves is not None
    assert (recording.saves.bytes, recording.saves.batches_between) == (4000, 20)


def test_waits_are_shared_out_by_what_the_worker_did() -> None:
    parts = analyse(steady(60, 10, 20, blocked_ms=6).processes, 10).parts
    found = (parts.computing, parts.storage, parts.preprocessing, parts.hand_over)
    assert found == pytest.approx((0.020, 0.006, 0.002, 0.002), rel=0.001), "making it takes 8 of 10 ms"
    assert parts.step == pytest.approx(0.030, rel=0.001)


def test_bytes_that_the_hook_did_not_see_lower_the_coverage() -> None:
    trainer = steady()
    assert analyse(trainer.processes, 10).coverage_percent == 100
    for made, fetch in enumerate(trainer.worker.fetches):
        fetch.process_read = made * 20_000  # threads of a client of its own
    assert analyse(trainer.processes, 10).coverage_percent == pytest.approx(100 * 8000 / (20_000 - 4096))


@pytest.mark.parametrize(
    ("fetch", "samples", "found"),
    [  # of a dataset whose items are batches of 2048; the batch, the bytes and number of its samples
        ({"items": 1, "n": 2048, "calls": 1}, 800, (1, 8000, 800)),  # rows in one piece
        ({"items": 1, "n": 2048, "calls": 30, "opens": 0}, 800, (1, 8000, 800)),  # in pieces of a buffer
        ({"items": 1, "n": 2048, "calls": 9, "read": 9, "maps": 1, "map_bytes": 8000}, 800, (1, 8009, 800)),
        ({"items": 1, "n": 2048, "calls": 2048}, 800, (2048, 8000 / 2048, 800 * 2048)),  # here and there
        ({"items": 1, "n": 2048, "calls": 9, "read": 9, "maps": 2048, "map_bytes": 8000}, 1, (2048, 3.91, 2048)),
        ({"items": 2048, "n": 2048, "calls": 1}, 800, (2048, 8000 / 2048, 800)),  # a sampler's list of indexes
        ({"items": None, "n": 2048, "calls": 1}, None, (2048, 8000 / 2048, None)),  # a stream
        ({"map_bytes": 800}, 800, (8, 1100, 800)),  # labels out of a mapped array
    ],
)
def test_a_batch_that_a_dataset_makes_is_a_sample_if_it_is_read_in_one_piece(
    fetch: dict[str, int | None], samples: int | None, found: tuple[int, float, int | None]
) -> None:
    trainer = steady().fetched(**fetch)
    trainer.rows.passes[0].samples = samples
    recording = analyse(trainer.processes, 10)
    assert (recording.batch_size, recording.loading.samples) == (found[0], found[2])
    assert recording.read_bytes_per_sample == pytest.approx(found[1], rel=0.01)
    assert recording.mapped == ("maps" in fetch)
    assert any("of 2048 samples by itself" in note for note in recording.notes) == (found[0] == 1)


@pytest.mark.parametrize(
    ("read", "calls", "device", "mapped_files", "mapped", "read_per_sample"),
    [
        (20, 0, 0, 0, False, 0.0),  # all in memory: the recorder's own bytes
        (9000, 0, 0, 0, False, 0.0),  # and another thread's, that hands tensors over
        (20, 0, 4096, 0, True, 0.0),  # pages of files that are mapped for one sample
        (20, 0, 0, 1, True, 0.0),  # Arrow's, in the page cache
        (200, 1, 64_000, 1, True, 0.0),
        (1840, 1, 0, 0, False, 230.0),  # compressed lines
        (1840, 1, 65_536, 0, False, 230.0),  # whose files are read ahead
        (8000, 16, 0, 1, False, 1000.0),  # records that calls read, beside a mapped index
    ],
)
def test_files_are_mapped_where_calls_do_not_read_what_a_sample_has(
    read: int, calls: int, device: int, mapped_files: int, mapped: bool, read_per_sample: float, tmp_path: Path
) -> None:
    trainer = steady().fetched(read=read, calls=calls, device=device, mapped=mapped_files, opens=0)
    trainer.worker.fetches[0].opens = calls
    (tmp_path / "samples.bin").write_bytes(bytes(800_000))
    recording, _ = recording_and_data([str(tmp_path / "samples.bin")], analyse(trainer.processes, 10))
    assert (recording.mapped, recording.read_bytes_per_sample) == (mapped, read_per_sample)


@pytest.mark.parametrize(
    ("files", "batches_of_a_worker", "read_per_sample"),
    [([], 1, 0.0), ([], 9, 0.0), (["/data/a.h5"], 9, 0.0), (["/data/a.h5"], 1, 104.0)],
)
def test_libraries_that_workers_load_with_their_first_batch_are_no_data(
    files: list[str], batches_of_a_worker: int, read_per_sample: float
) -> None:
    """Workers are forked for each pass; of a file that one has open, a single batch may have been all that it read."""
    trainer = steady(72).fetched(read=20, calls=0, opens=0, files=[])
    process, made = trainer.worker.process, trainer.worker.fetches
    parts = [made[at : at + batches_of_a_worker] for at in range(0, 72, batches_of_a_worker)]
    for fetches in parts:
        fetches[0].read, fetches[0].calls, fetches[0].files = 832, 1, files
    workers = [ProcessRows(structs.replace(process, pid=300 + place), fetches=part) for place, part in enumerate(parts)]
    trainer.rows.batches[0].pids = [rows.process.pid for rows in workers]
    assert analyse([trainer.rows, *workers], 10).read_bytes_per_sample == read_per_sample


def test_what_holds_no_training_is_refused_with_what_to_do() -> None:
    with pytest.raises(UserError, match=r"left no rows.*import dlemu\.contrib\.record"):
        analyse([], 10)
    trainer = Trainer()
    trainer.now = 5 * MS
    trainer.batch(trainer.begin(), 1, 1)
    with pytest.raises(UserError, match=r"1 batches .* after the first 10, which are left out as warm-up"):
        analyse(trainer.processes, 10)
    trainer.rows.steps.clear()
    with pytest.raises(UserError, match=r"1 batches .* and 0 steps of an optimizer were seen"):
        analyse(trainer.processes, 1)
    trainer = Trainer()  # that reads as nanoGPT's, from an array, with a loader for evaluations
    for _ in range(3):
        trainer.now += 30 * MS
        trainer.rows.steps.append(Step(t=trainer.now, thread=trainer.thread))
        trainer.train(4, 1, 5, steps=0)
    with pytest.raises(UserError, match=r"12 batches .* and 3 steps of an optimizer .* wrap reads of your own"):
        analyse(trainer.processes, 10)


def recorded(**changes: Any) -> Recording:
    trainer = steady(80, 0.2, lambda place: 30 + place % 7, save_ms=lambda place: 50 * (place in (29, 59)))
    recording = analyse(trainer.processes, 10)
    loading = {name: changes.pop(name) for name in ("samples", "iterable") if name in changes}
    return replace(recording, loading=replace(recording.loading, **loading), **changes)


def recipe_of(recording: Recording, data: Data, **verdict: Any) -> str:
    answer = RecordAnswer(complete=True, recording=recording, data=data, **verdict)
    return recipe_text(answer, recording, data, "matched")


def dataset(paths: Iterable[object], recording: Recording) -> Data:
    data = data_of(sorted(map(str, paths)), recording)
    assert data is not None
    return data


def shards(tmp_path: Path) -> list[Path]:
    for number in range(4):
        (tmp_path / f"shard{number}.tar").write_bytes(bytes(10_000))
    return sorted(tmp_path.iterdir())


def files(tmp_path: Path) -> list[str]:
    """Class folders of pictures beside code and weights, all with names of their owner's."""
    random, found = np.random.default_rng(3), list[str]()
    folder = tmp_path / "home" / "alice" / "acme-tumours" / "train"
    for kind in ("benign", "patient-hostile"):
        (folder / kind).mkdir(parents=True)
        for number in range(40):
            path = folder / kind / f"patient{number}.jpg"
            path.write_bytes(bytes(int(random.integers(90_000, 130_000))))
            if number % 4 == 0:
                found.append(str(path))
    for name in ("acme.safetensors", "labels.json"):
        (tmp_path / name).write_bytes(bytes(10**6))
        found.append(str(tmp_path / name))
    return found


def test_a_recipe_names_nobody_and_rounds_sizes_but_not_means_of_times(tmp_path: Path) -> None:
    recording = recorded(opens_per_sample=1.0, read_bytes_per_sample=110_000.0)
    data = dataset(files(tmp_path), recording)
    assert (data.files, data.format, data.samples_per_file) == (80, "jpeg", 1.0)
    assert data.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.jpg")), "of the whole folder"
    replay = Storage({"fast": 2.0}, 0.0, rate=200.123456)(recording, "fast", "replay-1")
    text = recipe_of(recording, data, replayable=True, replays=(replay,))
    assert len(text) < 8000, "a lawyer reads it"
    own = ["alice", "acme", "tumour", "patient", str(tmp_path), socket.gethostname()]
    own += [getpass.getuser()] * (getpass.getuser() != "root")
    assert not [word for word in own if word.lower() in text.lower()]
    assert not re.search(r"/\w+/", text.replace("/mnt/drive/data", "")), "no path"
    tree = yaml.safe_load(text)
    time = tree["train"]["computation_time"]
    assert (time["mean"], time["type"], len(time["seconds"])) == (recording.computation.mean, "empirical", 33)
    assert tree["dataset"]["record_length_bytes"] == float(f"{data.bytes / 80:.3g}")
    sizes = tree["dataset"]["record_length_bytes_quantiles"]
    assert sizes == sorted(float(f"{size:.3g}") for size in sizes)
    assert (tree["recorded"]["replayable"], tree["checkpoint"]["steps_between_checkpoints"]) == (True, 30)


def test_samples_of_shards_are_counted_by_what_is_known(tmp_path: Path) -> None:
    few, seen = shards(tmp_path)[:2], {"opens_per_sample": 0.01, "read_bytes_per_sample": 1000.0}
    found = [dataset(few, recorded(samples=samples, **seen)) for samples in (None, 200)]
    assert {(one.files, one.format) for one in found} == {(4, "webdataset")}
    assert [one.samples_per_file for one in found] == [10.0, 50.0]


@pytest.mark.parametrize(("samples", "epochs"), [(200, 3), (25, 24), (4, 72)])
def test_a_replay_has_as_many_epochs_as_its_steps_take(samples: int, epochs: int, tmp_path: Path) -> None:
    """72 steps: 60 measured, 10 of warm-up, and 2 that the worker reads ahead; a pass has 25, 3 or 1 of them."""
    seen = {"opens_per_sample": 0.01, "read_bytes_per_sample": 40_000 / samples, "steps": 60}
    recording = recorded(samples=samples, **seen)
    data = dataset(shards(tmp_path), recording)
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
    recording = recorded(opens_per_sample=2.0, read_bytes_per_sample=120_000.0, shipped_bytes_per_sample=80_000.0)
    data = dataset(tmp_path.iterdir(), recording)
    assert (data.files, data.format, data.ending, data.samples_per_file) == (60, "raw", ".jpg, .png", 1.0)
    assert not list(data_problems(data, recording))
    tree = yaml.safe_load(recipe_of(recording, data))
    assert tree["reader"]["batch_size"] == 2 * recording.batch_size
    preprocess = Duration.from_value(tree["reader"]["preprocess_time"], "preprocess_time")
    assert mean_seconds(preprocess) == pytest.approx(recording.preprocess.mean / 2)
    lengths = (tree["dataset"]["record_length_bytes"], tree["dataset"]["record_length_bytes_resize"])
    assert lengths == (60_000, 40_000)
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
    paths = (path for path in tmp_path.iterdir() if path.suffix != ".csv" or path.stem == "7")
    data = dataset(paths, recorded(samples=None, opens_per_sample=opens, read_bytes_per_sample=1000.0 * opens))
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


@pytest.mark.parametrize(("read", "steady"), [(1, True), (1.2, True), (0.17, False), (2, False)])
def test_a_buffer_that_fills_or_drains_does_not_change_the_bytes_of_a_sample(
    read: float, steady: bool, tmp_path: Path
) -> None:
    shards(tmp_path)
    changes = ROWS | {"read": read * 250, "shipped": 16, "calls_per_sample": 8.0}
    with patch.dict("datagen.own_folder.COUNTERS", webdataset=lambda file, version: 40):
        recording, data = bytes_seen(tmp_path, {"samples": None, "iterable": True}, changes)
    dataset = workload_of(recording, data, engine="matched")["dataset"]
    assert (dataset["format"], dataset["num_samples_per_file"]) == ("webdataset", 40)
    assert dataset["record_length_bytes"] == 250
    assert ["fills or drains" in problem for problem in recording.problems] == [True] * (not steady)


def bytes_seen(folder: Path, files: dict[str, Any], changes: dict[str, Any]) -> tuple[Recording, Data]:
    """Make files as given, if any; return what is known of 1000 samples in one, or of one sample in each."""
    for number in range(files.get("files", 1) if "size" in files else 0):
        (folder / f"{number}{files.get('ending', '.pt')}").write_bytes(bytes(files["size"]))
    sizes, of_loader = ("read", "shipped", "device"), {"samples": 1000, "iterable": False} | files
    own = {f"{key}_bytes_per_sample" if key in sizes else key: value for key, value in changes.items()}
    recording = recorded(**own, samples=of_loader["samples"], iterable=of_loader["iterable"])
    recording, data = recording_and_data([str(path) for path in sorted(folder.iterdir())], recording)
    assert data is not None
    return recording, data


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
    seen = {"opens_per_sample": 1.0, "read_bytes_per_sample": 110_000.0, "device_bytes_per_sample": device_bytes}
    recording = recorded(**seen, steps=steps, samples_before=0)
    data = dataset(files(tmp_path), recording)
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
        measured = {
            "samples_per_second": self.rate,
            "calls_per_sample": self.calls[engine],
            "device_bytes_per_sample": recording.device_bytes_per_sample,
            "worker_cpu_per_sample": recording.preprocess.mean + self.reader_cpu,
        }
        return Replay(folder=name, engine=engine, hand_over=0.0, **measured)


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
    for data in (dataset(files(tmp_path), recording), None):
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


@pytest.mark.parametrize(("replayable", "notes"), [(True, 0), (False, 1), (None, 1)])
def test_a_recipe_is_a_workload_of_dlemus_and_all_that_read_it_know_three_states(
    replayable: bool | None, notes: int, tmp_path: Path
) -> None:
    recording = recorded(opens_per_sample=1.0, read_bytes_per_sample=110_000.0)
    data = dataset(files(tmp_path), recording)
    (tmp_path / "job.yaml").write_text(recipe_of(recording, data, replayable=replayable, reason="so"))
    workload = load([f"workload={tmp_path / 'job.yaml'}", f"dataset.data_folder={tmp_path}"])
    assert (workload.notes, workload.unsupported) == ((), ())
    assert mean_seconds(workload.train.computation_time) == pytest.approx(recording.computation.mean)
    assert (workload.recorded.replayable, workload.recorded.reason) == (replayable, "so")
    found = list(recording_notes(workload.recorded, 1))
    assert [("not verified: so" in note, "not replayable: so" in note) for note in found] == [
        (replayable is None, replayable is False)
    ] * notes
