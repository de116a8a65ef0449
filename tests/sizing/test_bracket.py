"""A sweep is every combination; a search for the most finds it between what passes and what fails, in few runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.config.overrides import DATA_FOLDER, check_points, points
from dlemu.config.schema import Workload
from dlemu.metrics.verdict import Outcome
from dlemu.results.answer_files import read_answer
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import kind_named
from dlemu.runner.events import ignore
from dlemu.runner.run_list import Planned
from dlemu.studies.answers import SWEEP, SweepAnswer, SweepPoint, SweepQuestion, edge
from dlemu.studies.prerequisites import Child
from dlemu.studies.sweep.run import CLOSE, BracketSearch, next_value


@given(most=st.floats(0.001, 1000), first=st.floats(0.01, 10))
def test_the_edge_is_found_in_few_runs(most: float, first: float) -> None:
    tried: dict[float, bool] = {}
    while (value := next_value(tried, first)) is not None:
        assert value not in tried, "nothing runs twice"
        tried[value] = value <= most
        assert len(tried) < 16
    passing, failing = edge(sorted(tried.items()))
    if passing and failing:
        assert passing <= most < failing <= CLOSE * 1.01 * passing
    else:
        assert most / first > 1000 or first / most > 500, "so far away nobody looks"


class Tried(BracketSearch):
    """Runs that pass up to a value, and say nothing from another one on."""

    most, silent_from = 5.0, math.inf

    def start(self, planned: Planned[Child], folder: str) -> SweepPoint:
        (value,) = map(float, planned.settings.values())
        outcome: Outcome = "no verdict" if value >= self.silent_from else "pass" if value <= self.most else "fail"
        figures = JobFigures(kind="kvcache", workload="x", ranks=1, outcome=outcome, verdict="NO VERDICT: too short")
        assert planned.what.words[-1].startswith("kv.speed=")
        return SweepPoint(settings=dict(planned.settings), folder="x", figures=figures)


def search(runs: BracketSearch) -> float:
    command = Child(kind_named("training"), Workload(), ("workload=x",))
    found, _ = runs.search(command, ("kv", "speed"), 1.0, wants_page=False).edge
    return 0.0 if found is None else float(found.settings["kv.speed"])


def test_a_search_keeps_its_runs_and_goes_on(tmp_path: object) -> None:
    question = SweepQuestion(most_of="kv.speed", settings_digest="")
    runs = Tried(str(tmp_path), question, (), ignore)
    found = search(runs)
    assert found <= 5 < found * CLOSE
    answer = read_answer(str(tmp_path), SWEEP, SweepAnswer)
    assert answer is not None
    assert answer.complete
    runs.save(complete=False)
    again = Tried(str(tmp_path), question, (), ignore)
    again.resume()
    assert len(again.runs) == len(runs.runs) > 4
    assert search(again) == found
    assert len(again.runs) == len(runs.runs), "nothing ran again"


def test_runs_that_say_nothing_end_it_with_what_they_said(tmp_path: object) -> None:
    question = SweepQuestion(most_of="kv.speed", settings_digest="")
    runs = Tried(str(tmp_path), question, (), ignore)
    runs.silent_from = 1.0
    with pytest.raises(UserError, match=r"kv.speed=1 neither passed nor failed \(NO VERDICT: too short\): wanted"):
        search(runs)
    assert len(runs.runs) == 1, "what was measured is kept"
    beyond = Tried(str(tmp_path) + "/other", question, (), ignore)
    beyond.silent_from = 4.0
    assert search(beyond) <= 4 < search(beyond) * CLOSE, "the host gives out before the storage"


def test_a_sweep_is_every_combination() -> None:
    found = points(["workload=unet3d", "ranks=1,2", "drives=/mnt/a,/mnt/b", "reader.file_shuffle=seed"])
    assert [point.settings for point in found] == [
        {"ranks": ranks, DATA_FOLDER: drive} for ranks in "12" for drive in ("/mnt/a", "/mnt/b")
    ]
    assert found[1].words == ("workload=unet3d", "reader.file_shuffle=seed", "ranks=1", f"{DATA_FOLDER}=/mnt/b")
    assert len(points(["ranks=range(1,5)", "a=[1,2]"])) == 4
    assert points(["drives=/mnt/a"])[0].words == (f"{DATA_FOLDER}=/mnt/a",)
    with pytest.raises(UserError, match="several values"):
        check_points(points(["ranks=4"]))
