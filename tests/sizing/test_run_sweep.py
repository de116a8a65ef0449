"""A sweep is every combination, and goes on where it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from datagen.errors import UserError
from dlemu.config.points import DATA_FOLDER, Point, check_points, points
from dlemu.results.answer_files import read_answer
from dlemu.sizing.answers import SWEEP, RunFigures, SweepAnswer, SweepPoint, SweepQuestion
from dlemu.sizing.run_sweep import finished_points, run_points
from dlemu.sizing.sizing_events import PointBegan, PointEnded, SizingEvent

QUESTION = SweepQuestion(overrides=("ranks=1,2,3",))
FIGURES = RunFigures(workload="unet3d", ranks=1, epochs=1, passed=True, total_seconds=1.0)


def saved(folder: Path) -> SweepAnswer:
    answer = read_answer(str(folder), SWEEP, SweepAnswer)
    assert answer is not None
    return answer


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


def test_finished_points_are_kept_and_the_others_run(tmp_path: Path) -> None:
    kept = SweepPoint(settings={"ranks": "1"}, folder="point-01", figures=FIGURES)
    events: list[SizingEvent] = []
    states: list[SweepAnswer] = []

    def run(point: Point, folder: str) -> RunFigures:
        if point.settings["ranks"] == "3":
            states.append(saved(tmp_path))
            return FIGURES
        raise UserError("no such dataset")

    swept = run_points(QUESTION, points(["ranks=1,2,3"]), str(tmp_path), [kept], run, events.append)
    assert [event.settings["ranks"] for event in events if isinstance(event, PointBegan)] == ["2", "3"]
    assert [event.point for event in events if isinstance(event, PointEnded)] == list(swept.points[1:])
    assert swept.points[0] == kept
    assert [(point.failure, point.exit_status) for point in swept.points] == [
        (None, None),
        ("no such dataset", 2),
        (None, None),
    ]
    assert swept.exit_status == 2
    assert [(state.complete, len(state.points)) for state in states] == [(False, 2)]
    assert saved(tmp_path) == swept
    assert swept.complete


def test_a_sweep_goes_on_with_the_points_that_failed(tmp_path: Path) -> None:
    def fail(point: Point, folder: str) -> RunFigures:
        raise UserError("no memory")

    run_points(QUESTION, points(["ranks=1,2"]), str(tmp_path), [], fail)
    assert finished_points(str(tmp_path), QUESTION) == ()
    with pytest.raises(UserError, match=r"was .*, is"):
        finished_points(str(tmp_path), SweepQuestion(overrides=("ranks=1,9",)))
    run_points(QUESTION, points(["ranks=1,2"]), str(tmp_path), [], lambda point, folder: FIGURES)
    with pytest.raises(UserError, match="holds a finished sweep"):
        finished_points(str(tmp_path), QUESTION)
