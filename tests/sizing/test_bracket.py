"""A sweep is every combination, a search for the most few runs; a run of another process ends as a result or not."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlemu
from datagen.errors import DlemuError, UserError
from dlemu.checkpoints.stored import folder_name
from dlemu.config import load
from dlemu.config.overrides import DATA_FOLDER, check_points, points
from dlemu.config.schema import Workload
from dlemu.jobs.checkpoint.parts import figures as figures_of
from dlemu.jobs.checkpoint.run import CHECKPOINTS
from dlemu.metrics.verdict import Outcome
from dlemu.ranks import Interrupted, interrupt_on
from dlemu.results.answer_files import read_answer
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import kind_named
from dlemu.runner import child_run
from dlemu.runner.child_run import LOG, job, run_attached, run_train
from dlemu.runner.events import ignore
from dlemu.runner.job import JobRequest, run_job
from dlemu.runner.run_list import Planned
from dlemu.studies.answers import SWEEP, SweepAnswer, SweepPoint, SweepQuestion, edge
from dlemu.studies.prerequisites import Child
from dlemu.studies.sweep import run as run_sweep
from dlemu.studies.sweep.run import CLOSE, BracketSearch, next_value
from tests.run.test_checkpoint_jobs import SMALL, run
from tests.runs import present


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
        assert planned.what.argv[-1].startswith("kv.speed=")
        return SweepPoint(settings=dict(planned.settings), folder="x", figures=figures)


def search(runs: BracketSearch) -> float:
    command = Child(kind_named("training"), Workload(), ("workload=x",))
    found, _ = runs.search(command, 1.0, wants_page=False).edge
    return 0.0 if found is None else float(found.settings["kv.speed"])


def test_a_search_keeps_its_runs_and_goes_on(tmp_path: object) -> None:
    question = SweepQuestion(most_of="kv.speed", settings_digest="")
    runs = Tried(str(tmp_path), question, (), ignore)
    found = search(runs)
    assert found <= 5 < found * CLOSE
    assert present(read_answer(str(tmp_path), SWEEP, SweepAnswer)).complete
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
    assert points(["++drives=/mnt/a"])[0].words == (f"{DATA_FOLDER}=/mnt/a",)
    for word in ("ranks=4", "drives=glob(*)", "ranks=interval(1,4)", "ranks=range(1,4,0)", "ranks=range(0,nan)"):
        with pytest.raises(UserError, match=r"values.*, as in ranks=1,2,4"):
            check_points(points([word]))


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have points run here, without a process of their own; return the checkpoint folder of each."""
    folders: list[str] = []

    def run_here(words: Sequence[str], folder: str, look: Callable[[], None], start: object, command: str) -> None:
        workload = load([*words, f"output.folder={folder}"])
        folders.append(workload.checkpoint.checkpoint_folder)
        assert command == "checkpoint"
        run_job(JobRequest(load=lambda: workload, wants_verdict=False), lambda event: None, CHECKPOINTS)
        if workload.ranks == 3:
            raise UserError("three are too many")

    monkeypatch.setattr(run_sweep, "run_train", run_here)
    return folders


def words(folder: Path, *more: str) -> list[str]:
    folders = {"checkpoint.checkpoint_folder": str(folder / "saved"), "output.folder": str(folder / "sweep")}
    settings = SMALL | folders
    changed = {word.partition("=")[0] for word in more}
    return [*(f"{key}={value}" for key, value in settings.items() if key not in changed), *more]


def test_each_point_writes_into_a_folder_of_its_own_that_goes_again(tmp_path: Path, saved: list[str]) -> None:
    told: list[object] = []
    several = words(tmp_path, "ranks=1,2,3", "checkpoint.format=raw,torch")
    swept = dlemu.sweep(several, on_progress=told.append)
    assert len(told) >= 6
    assert [path.rpartition("-")[0] for path in saved] == [f"{tmp_path}/saved/point-{n:02}" for n in range(1, 7)]
    assert os.listdir(tmp_path / "saved") == [], "also where a point failed"
    assert [point.failure for point in swept.points] == [*[None] * 4, *["three are too many"] * 2]
    assert swept.exit_status == 2
    for point in swept.points[:4]:
        done = CHECKPOINTS.read(str(tmp_path / "sweep" / point.folder))
        assert point.figures == figures_of(done)
    figures = [point.figures for point in swept.points[:4] if point.figures]
    assert [each.ranks for each in figures] == [1, 1, 2, 2]
    assert all(each.metrics["write_slowest_gib_per_second"].mean > 0 for each in figures)
    assert figures[0].metrics["checkpoint_gib"] == figures[1].metrics["checkpoint_gib"], "whatever the format adds"
    assert dlemu.load_result(tmp_path / "sweep") == swept
    compared = dlemu.compare(str(tmp_path / "sweep"), str(tmp_path / "sweep"))
    assert [pair.settings for pair in compared.runs] == [point.settings for point in swept.points[:4]]
    assert compared.verdict.startswith("with 2 ranks, checkpoint.format=torch writing: ")


def test_checkpoints_that_are_only_read_stay(tmp_path: Path, saved: list[str]) -> None:
    run(tmp_path, "wrote", num_checkpoints_read="0", num_checkpoints_write="1")
    reading = ("checkpoint.num_checkpoints_write=0", "checkpoint.num_checkpoints_read=1", "checkpoint.readers=1,2")
    swept = dlemu.sweep(words(tmp_path, *reading))
    assert saved == [str(tmp_path / "saved")] * 2
    assert os.listdir(tmp_path / "saved") == [folder_name(1)]
    assert [point.failure for point in swept.points] == [None, None]


def test_what_no_point_could_do_is_told_before_the_first(
    tmp_path: Path, saved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = "model.parallelism={tensor: 2, pipeline: 1, zero_stage: 1}"
    with pytest.raises(UserError, match=r"ranks=3: .*not a multiple of the 2 ranks that share one copy"):
        dlemu.sweep(words(tmp_path, "ranks=2,3", cut))
    monkeypatch.setattr("dlemu.jobs.training.result.inspect", lambda *_, **__: None)
    with pytest.raises(UserError, match="some points are a run of checkpoints and some a training run"):
        dlemu.sweep(words(tmp_path, "workflow={train: true},{train: false, checkpoint: true}"))
    assert not saved


def child(folder: Path, script: str) -> None:
    run_train([], str(folder), lambda: None, launcher=["sh", "-c", script, sys.executable])


def test_a_run_that_leaves_its_summary_has_completed(tmp_path: Path) -> None:
    child(tmp_path, f"echo all is well; touch {tmp_path}/summary.json; exit 1")
    assert (tmp_path / LOG).read_text() == "all is well\n"


@pytest.mark.parametrize("folder", ["/a=b, c", "/it's", "/x[1]{2}", "/\u00e4(1),/b", "12", "null", "-x y"])
def test_a_run_gets_its_folder_whatever_its_name(folder: str) -> None:
    assert load([job([], folder).words[-1]]).output.folder == folder


@pytest.mark.parametrize(
    ("script", "ended", "kind"),
    [
        ("echo 'dlemu: no such dataset' >&2; exit 2", "^no such dataset$", UserError),  # a mistake, in its own words
        ("echo 'dlemu: cause' >&2; echo 'dlemu: end' >&2; exit 3", "3; it printed:\ncause\ndlemu: end", DlemuError),
        ("echo Traceback; exit 1", "left no summary.json; it printed:\nTraceback", DlemuError),
        ("echo begun; kill -9 $$", "was killed by SIGKILL; .*; it printed:\nbegun", DlemuError),
        ("kill -9 $$", "was killed by SIGKILL; .*; it had printed nothing", DlemuError),
    ],
)
def test_an_end_without_a_result_is_a_failure(tmp_path: Path, script: str, ended: str, kind: type[DlemuError]) -> None:
    with pytest.raises(kind, match=ended):
        child(tmp_path, script)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_being_told_to_stop_lets_the_run_save_and_then_stops(number: signal.Signals, tmp_path: Path) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a `nohup` before the tests may have handed down another
    interrupt_on(signal.SIGTERM, signal.SIGINT)
    script = f"trap 'touch {tmp_path}/saved; exit 143' TERM; kill -{number.name[3:]} $PPID; sleep 60 & wait"
    try:
        with pytest.raises(Interrupted) as stopped:
            child(tmp_path, script)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert stopped.value.signal_number == number
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_while_a_users_command_starts_reaches_it(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = child_run._start

    def signalled(command: list[str], **options: Any) -> Any:
        signal.raise_signal(number)
        return start(command, **options)

    monkeypatch.setattr(child_run, "_start", signalled)
    assert run_attached(["sleep", "20"], {}) == -number
