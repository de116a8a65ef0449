"""The search finds the edge whatever it starts from, and says why it ends there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.config.overrides import take_word
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import given_speed
from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.results.answer_files import save_answer, to_json
from dlemu.runner.run_list import Planned
from dlemu.studies.answers import SIZE, SizeAnswer, Trial
from dlemu.studies.prerequisites import check_launcher
from dlemu.studies.size import find_size, trials
from dlemu.studies.size.find_size import Search, expected_count, size
from dlemu.studies.size.search import MIN_REPEATS
from dlemu.studies.size.size_verdict import build_answer
from dlemu.studies.size.trials import steady_series
from tests.prediction.test_calibration import workload
from tests.runs import present
from tests.sizing.fakes import DEMAND, FakeRunner, known, question
from tests.validation.virtual_drives import Drive, Training, train


class Unsaved(Search):
    def make_folder(self, planned: Planned[int]) -> str:
        return ""

    def save(self, *, complete: bool) -> SizeAnswer:
        return self.answer(complete=complete)


def find(runner: FakeRunner, *, first: int = 8, most: int = 4096, trials: Sequence[Trial] = ()) -> SizeAnswer:
    runs = Unsaved("", question(), (), lambda event: None)
    runs.runs = list(trials)
    return runs.search(known(max_accelerators=most), first, runner)


@given(feeds=st.integers(0, 400), part=st.floats(0.02, 0.98), first=st.integers(1, 600))
def test_the_edge_is_found_from_any_estimate(feeds: int, part: float, first: int) -> None:
    runner = FakeRunner((feeds + part) * 0.9 * DEMAND, noise=0.001)
    answer = find(runner, first=first)
    assert answer.max_accelerators == feeds
    assert present(answer.failing).accelerators == feeds + 1
    assert len(set(runner.tried)) <= 20
    edges = [count for count in answer.counts if count.accelerators in (feeds, feeds + 1)]
    assert all(count.trials >= MIN_REPEATS for count in edges)


@pytest.mark.parametrize(("first", "tried"), [(16, [16, 17, 16, 17]), (100, [100, 16])])
def test_a_good_estimate_costs_two_counts_and_their_repeats_and_a_failed_trial_tells_the_next(
    first: int, tried: list[int]
) -> None:
    runner = FakeRunner(16.4 * 0.9 * DEMAND)
    find(runner, first=first)
    assert sorted(runner.tried[: len(tried)]) == sorted(tried)
    assert runner.tried[: len(tried)] == tried or first == 16, "the estimate first"
    assert len(runner.tried) == 4 or first == 100


def test_what_is_too_close_to_tell_is_tried_again_and_not_called_a_pass() -> None:
    runner = FakeRunner(16.0 * 0.9 * DEMAND, noise=2.0)
    answer = find(runner, first=16)
    assert runner.tried.count(16) == 5
    assert [count.accelerators for count in answer.too_close_to_tell] == [16]
    assert answer.max_accelerators == 15
    assert "too close to call" in answer.verdict


class Fickle(FakeRunner):
    def __call__(self, accelerators: int, number: int, folder: str) -> Trial:
        if accelerators in self.tried:
            raise UserError("no memory left")
        return super().__call__(accelerators, number, folder)


def test_a_count_that_ran_and_can_not_be_repeated_ends_the_search_with_its_reason() -> None:
    with pytest.raises(UserError, match="no memory left"):
        find(Fickle(8.5 * 0.9 * DEMAND))


@pytest.mark.parametrize(
    ("runner", "first", "most", "found", "what", "said"),
    [
        (FakeRunner(100 * DEMAND, holds=11), 20, 4096, 11, "host", "12 ranks want more memory"),
        (FakeRunner(1000 * DEMAND), 500, 8, 8, "count", "no more were tried"),
        (FakeRunner(100 * DEMAND, ceiling=dict.fromkeys(range(5, 50), 80.0)), 10, 4096, 4, "emulator", "emulator"),
    ],
    ids=["no more fit", "no more may be tried", "the emulator gives out"],
)
def test_what_ends_a_search_before_the_storage_does_is_not_called_storage(
    runner: FakeRunner, first: int, most: int, found: int, what: str, said: str
) -> None:
    answer = find(runner, first=first, most=most)
    assert (answer.max_accelerators, answer.limited_by.what) == (found, what)
    assert said in answer.verdict
    if what == "emulator":
        assert answer.storage_could_feed == 11  # 1000 MB/s of the probe / 90 MB/s
        assert runner.tried.count(5) == 1, "a host that can't is not measured again"


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        ({"question": asdict(question(cached=True))}, "cached was True, is False"),
        ({"schema_version": None}, "has schema_version None, wanted 1"),
    ],
)
def test_a_folder_of_something_else_is_refused(saved: Any, reason: str, tmp_path: Path) -> None:
    answer = build_answer(question(), known(), [])
    save_answer(str(tmp_path), SIZE, json.loads(to_json(answer)) | saved)
    with pytest.raises(UserError, match=reason):
        Search(str(tmp_path), question(), (), lambda event: None).resume()


@pytest.mark.parametrize(
    ("probe", "count"),
    [(0.9 * 80 * 6.5, 6), (0.9 * 80 * 40, 12)],  # where bandwidth ends; the dataset is enough for no more
)
def test_it_begins_where_the_model_sees_the_edge(probe: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_size, "calibrate_from_levels", lambda *_, cores, **__: given_speed(probe, cores=cores))
    job: Any = SimpleNamespace(workload=workload(ranks=12, steps=100))  # of 4 samples in 50 ms: 80 MB/s each
    read = known(probe_mb_per_second=probe, mb_per_accelerator=80.0, max_accelerators=12)
    assert expected_count(job, (), read) == count


MS = 1_000_000


def run(read_ms: list[float], queue: int = 3) -> StepRows:
    """One rank whose reader takes so long for each batch, one after the other, at most `queue` batches ahead."""
    times = iter(read_ms)
    drive = Drive(channels=1, serve=lambda *_: next(times) / 1e3)
    return train(drive, Training(workers=1, ahead=queue + 1, steps=len(read_ms), step_seconds=0.1, batch_bytes=1.0))


@pytest.mark.parametrize(("read_ms", "busy", "windows"), [(60.0, 100, 19), (125.0, 80, 24)])
def test_a_storage_that_keeps_up_or_is_too_slow(read_ms: float, busy: float, windows: int) -> None:
    series = steady_series(run([read_ms] * 200), ahead=4, window_seconds=1.0)
    assert len(series.busy) == windows
    assert series.busy.mean() == pytest.approx(busy, abs=0.5)
    assert series.sustained.mean() == pytest.approx(busy, abs=1)


def test_a_queue_that_runs_dry_counts_what_is_read() -> None:
    """What was read before the window lasts for all of it, though reading is too slow."""
    series = steady_series(run([1.0] * 11 + [110.0] * 89, queue=10), ahead=11, window_seconds=0.5)
    assert series.busy.mean() == pytest.approx(100)
    assert series.sustained.mean() == pytest.approx(100 / 1.1, abs=1)


def test_the_end_of_an_epoch_counts_no_leftovers() -> None:
    """At its end an epoch lives on its queue, with nothing more to read."""
    rows = run([100.0] * 50, queue=10)
    series = steady_series(rows, ahead=11, window_seconds=0.5)
    assert len(series.busy) == 2 * (50 - 1 - 11 - 1) // 10
    assert series.fed.mean() == pytest.approx(100, abs=1)


def test_of_many_ranks_few_logs_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(100):
        (tmp_path / f"rank_{rank}.steps").touch()
    monkeypatch.setattr(trials, "read_log", lambda path: np.zeros(1, STEP_DTYPE))
    monkeypatch.setattr(trials, "TRAINING", 0)
    assert len(trials._live_rows(str(tmp_path))) == 50


def test_windows_by_hand() -> None:
    """From the end of the first step, at 13 s, to the begin of the fifth, at 49 s, in windows of 9 s.

    Steps of 10 s but for waits of 0, 2, 4 and 6 s before them, each batch read in the 5 s before it came.
    """
    rows = np.zeros(6, STEP_DTYPE)
    rows["rank"], rows["epoch"], rows["block"], rows["step"] = 0, 1, 1, np.arange(1, 7)
    rows["wait_ns"], rows["compute_ns"] = np.array([3, 0, 2, 4, 6, 8]) * 1000 * MS, 10_000 * MS
    rows["free_ns"] = np.array([0, 13, 23, 35, 49, 65]) * 1000 * MS
    rows["finished_ns"] = rows["free_ns"] + rows["wait_ns"]
    rows["started_ns"] = rows["finished_ns"] - 5000 * MS
    series = steady_series(rows, ahead=1, window_seconds=9)
    # It computes from 13 to 23, 25 to 35, 39 to 49 s.
    assert series.busy == pytest.approx([100 * part / 9 for part in (9, 1 + 6, 4 + 1, 9)])
    # Batches, of 10 s computation each, are read from 20 to 25, 34 to 39 and 50 to 55 s.
    assert series.fed == pytest.approx([100 * 10 * part / 5 / 9 for part in (2, 3, 5, 0)])
    assert series.sustained is series.fed, "20 s of 36 are less than 29"


@pytest.fixture
def recipe(tmp_path: Path) -> list[str]:
    """Words that choose a workload of 20 samples; an accelerator needs 165 batches of two."""
    text = "dataset: {num_files_train: 20}\nreader: {batch_size: 2, read_threads: 1}\ntrain: {computation_time: 0.05}"
    (tmp_path / "job.yaml").write_text(text)
    return [f"workload={tmp_path / 'job.yaml'}", f"dataset.data_folder={tmp_path / 'data'}"]


@pytest.mark.parametrize(("most", "at_least", "suffices_for"), [(4096, None, 8), (4096, 11, 12), (3, None, 3)])
def test_a_dataset_that_is_made_suffices_for_some(
    most: int, at_least: int | None, suffices_for: int, recipe: list[str]
) -> None:
    made: list[int] = []

    def make(workload: Workload) -> None:
        made.append(workload.dataset.num_files_train)
        raise UserError("enough seen")

    with pytest.raises(UserError, match="enough seen"):
        size(recipe, most=most, at_least=at_least, make=make)
    assert made == [suffices_for * 2 * 165]


def test_no_data_is_made_for_a_folder_that_holds_something_else(recipe: list[str], tmp_path: Path) -> None:
    save_answer(str(tmp_path / "old"), SIZE, {"schema_version": 0})
    with pytest.raises(UserError, match="schema_version 0"):
        size([*recipe, f"output.folder={tmp_path / 'old'}"], make=lambda workload: pytest.fail("data was made"))


def test_a_dataset_for_none_says_how_large_it_must_be(recipe: list[str]) -> None:
    with pytest.raises(UserError, match=r"20 samples: wanted at least 330 .*165 steps of 2 .* dataset of 330 files"):
        size([*recipe, "dataset.num_files_train=20"], make=lambda workload: None)


@pytest.mark.parametrize("word", ["train.computation_time=0", "dataset.format=synthetic", "reader.data_loader=none"])
def test_what_every_count_would_pass_is_refused(word: str, recipe: list[str]) -> None:
    with pytest.raises(UserError, match=f"^{word.replace('=', ' is ')}: without .*, every count passes"):
        size([*recipe, word])


def test_the_launcher_is_a_word_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert take_word(["a=1", 'launcher="mpirun -np {ranks}"'], "launcher") == ("mpirun -np {ranks}", ["a=1"])
    assert take_word(["a=1"], "launcher") == ("", ["a=1"])
    with pytest.raises(UserError, match="does not say where the count goes"):
        check_launcher("size", "mpirun -np 4")
    for wrong in ("mpirun 'a -np {ranks}", "mpirun -np {ranks} --host {host}", "mpirun -np {ranks} {}"):
        with pytest.raises(UserError, match="is no command"):
            check_launcher("size", wrong)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(UserError, match="start it once"):
        check_launcher("size", "")
