"""The search finds the edge whatever it starts from, and says why it ends there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.jobs.training.prediction.calibration import given_speed
from dlemu.results.answer_files import save_answer, to_json
from dlemu.runner.run_list import Planned
from dlemu.studies.answers import SIZE, SizeAnswer, Trial
from dlemu.studies.size import find_size
from dlemu.studies.size.find_size import Search, expected_count
from dlemu.studies.size.search import REPEATS
from dlemu.studies.size.size_verdict import build_answer
from tests.prediction.test_calibration import workload
from tests.sizing.fakes import DEMAND, FakeRunner, known, question


class Unsaved(Search):
    """A search that leaves nothing behind."""

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
    assert answer.failing is not None
    assert answer.failing.accelerators == feeds + 1
    assert len(set(runner.tried)) <= 20
    edges = [count for count in answer.counts if count.accelerators in (feeds, feeds + 1)]
    assert all(count.trials >= REPEATS for count in edges)


def test_a_good_estimate_costs_two_counts_and_their_repeats() -> None:
    runner = FakeRunner(16.4 * 0.9 * DEMAND)
    find(runner, first=16)
    assert sorted(runner.tried) == [16, 16, 17, 17]


def test_a_failed_trial_tells_where_the_edge_is() -> None:
    runner = FakeRunner(16.4 * 0.9 * DEMAND)
    find(runner, first=100)
    assert runner.tried[:2] == [100, 16]


def test_what_is_too_close_to_tell_is_tried_again_and_not_called_a_pass() -> None:
    runner = FakeRunner(16.0 * 0.9 * DEMAND, noise=2.0)
    answer = find(runner, first=16)
    assert runner.tried.count(16) == 5
    assert [count.accelerators for count in answer.too_close_to_tell] == [16]
    assert answer.max_accelerators == 15
    assert "too close to call" in answer.verdict


def test_the_range_ends_where_the_host_holds_no_more() -> None:
    answer = find(FakeRunner(100 * DEMAND, holds=11), first=20)
    assert answer.max_accelerators == 11
    assert answer.limited_by.what == "host"
    assert "12 ranks want more memory" in answer.verdict


class Fickle(FakeRunner):
    """Runs each count once, then not again."""

    def __call__(self, accelerators: int, number: int, folder: str) -> Trial:
        if accelerators in self.tried:
            raise UserError("no memory left")
        return super().__call__(accelerators, number, folder)


def test_a_count_that_ran_and_can_not_be_repeated_ends_the_search_with_its_reason() -> None:
    with pytest.raises(UserError, match="no memory left"):
        find(Fickle(8.5 * 0.9 * DEMAND))


def test_a_count_that_may_not_be_passed_ends_the_search() -> None:
    answer = find(FakeRunner(1000 * DEMAND), first=500, most=8)
    assert answer.max_accelerators == 8
    assert answer.failing is None
    assert "no more were tried" in answer.verdict


def test_an_emulator_that_gives_out_first_is_not_called_storage() -> None:
    runner = FakeRunner(100 * DEMAND, ceiling=dict.fromkeys(range(5, 50), 80.0))
    answer = find(runner, first=10)
    assert answer.max_accelerators == 4
    assert answer.limited_by.what == "emulator"
    assert answer.storage_could_feed == 11  # 1000 MB/s of the probe / 90 MB/s
    assert runner.tried.count(5) == 1, "a host that can't is not measured again"


@pytest.mark.parametrize(
    ("file", "saved", "reason"),
    [
        (SIZE, {"question": asdict(question(cached=True))}, "cached was True, is False"),
        (SIZE, {"schema_version": None}, "has schema_version None, wanted 1"),
        ("summary.json", {}, "results of a run"),
    ],
)
def test_a_folder_of_something_else_is_refused(file: str, saved: Any, reason: str, tmp_path: Path) -> None:
    answer = build_answer(question(), known(), [])
    save_answer(str(tmp_path), file, json.loads(to_json(answer)) | saved)
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
