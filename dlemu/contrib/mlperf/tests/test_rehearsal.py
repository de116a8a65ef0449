"""Rehearsals: their sequence, what is laid out and what the check finds in it, with runs that take no time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import DatasetError, DlemuError, UserError
from datagen.inspection import Dataset
from datagen.layout import layouts
from dlemu.config import load
from dlemu.contrib.mlperf.check.checkpoint_rules import figures_of
from dlemu.contrib.mlperf.check.judge import Checked, check_folder
from dlemu.contrib.mlperf.check.submission_tree import REHEARSAL
from dlemu.contrib.mlperf.rehearsal import edition_tree, rehearse
from dlemu.contrib.mlperf.rehearsal.datasize import checkpoint_datasize, datasize
from dlemu.contrib.mlperf.rehearsal.edition_tree import RehearsalPlan
from dlemu.contrib.mlperf.rehearsal.rehearse import CheckpointRehearsal, TrainingRehearsal, library_cores, read_figures
from dlemu.contrib.mlperf.rules.editions import RUN_FOLDERS
from dlemu.contrib.mlperf.rules.known import by_rule
from dlemu.contrib.mlperf.rules.training import GIB
from dlemu.dlio.config import DlioFolders
from dlemu.dlio.export import export_beside
from dlemu.dlio.results import write_results
from dlemu.extend import SpaceError
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import TRAINING
from dlemu.machine import environment
from dlemu.machine.environment import HostFacts
from dlemu.runner import child_run
from dlemu.runner.job import save as save_run
from tests.datasets import make_dataset
from tests.dlio import published_checkpoints as published
from tests.dlio.test_dlio_checkpoints import published_run
from tests.runs import make_log, present

LAPTOP = {"dataset.size", "dataset.made", "dataset.phases", "settings.changed", "overrides.unknown", "hosts.few"}
LAPTOP |= {"runs.overlap", "workload.differs", "dataset.filesystem", "au.low"}
"""What is true of a small dataset in the one temporary folder."""


def plan_of(words: Sequence[str], folder: Path, launcher: str = "") -> RehearsalPlan:
    names = {"organisation": "acme", "system": "box", "launcher": launcher}
    return RehearsalPlan(workload=load(words), overrides=tuple(words), folder=str(folder), **names)


def make_plan(folder: Path) -> RehearsalPlan:
    words = ["workload=unet3d", "accelerator=b200", "ranks=2", f"dataset.data_folder={folder / 'data'}"]
    words += ["dataset.num_files_train=96", "reader.batch_size=4", "train.epochs=2", "train.computation_time=0.05"]
    words += ["dataset.record_length_bytes_stdev=0", "workflow.checkpoint=false", "reader.read_threads=2"]
    (folder / "data").mkdir(exist_ok=True)
    return plan_of(words, folder / "out")


def run_by_hand(words: list[str], folder: str) -> None:
    workload = load(words)
    train, _ = layouts(workload.dataset)
    size = train.num_files * 1000
    limits: dict[str, Any] = {"max_file_bytes": 1000, "max_sample_bytes": 1000, "total_bytes": size}
    found = Dataset(spec=workload.dataset, train=train, valid=None, manifest=None, **limits)
    job = TrainingJob(
        workload=workload,
        ranks=workload.ranks,
        dataset=found,
        seed=workload.train.seed,
        folder=folder,
        started_at="2026-01-02T03:04:05+00:00",
    )
    (Path(folder) / "console.txt").write_text("a run\n")
    save_run(TRAINING, job, make_log(job, seed=workload.train.seed), export_beside)


def minutes() -> Callable[[], datetime]:
    """A clock that goes on whenever it is looked at, three times a run: by less than a run takes."""
    moments: Iterator[datetime] = (datetime(2026, 1, 2, 3, 4) + timedelta(seconds=0.6 * look) for look in range(1000))
    return lambda: next(moments)


def rehearsal(plan: RehearsalPlan) -> TrainingRehearsal:
    size = datasize(plan.workload, edition="3.0", hosts=1, memory_gib_per_host=64)
    return TrainingRehearsal(plan=plan, size=size, report=lambda line: None, now=minutes())


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingRehearsal:
    monkeypatch.setattr(RehearsalPlan, "run", lambda self, words, folder, command: run_by_hand(words, folder))
    monkeypatch.setattr(rehearse, "inspect", lambda *_, **__: None)
    monkeypatch.setattr(rehearse, "library_cores", lambda _: None)
    done = rehearsal(make_plan(tmp_path))
    done.run()
    return done


def broken(folder: str) -> set[str]:
    return {one.rule for one in check_folder(folder).findings if one.severity != "info"}


def test_the_tree_breaks_no_rule_but_those_of_size(made: TrainingRehearsal) -> None:
    plan = made.plan
    checked = check_folder(plan.folder)
    assert broken(plan.folder) <= LAPTOP
    (result,) = checked.results
    assert (result.edition.name, result.division, len(result.measured)) == ("3.0", "closed", 5)
    seeds = [call.section("train")["seed"] for call in result.runs]
    assert len(set(seeds)) == len(seeds) == RUN_FOLDERS
    assert all(call.run and call.run.recomputed.basis == "steps" for call in result.runs)
    overrides = {word.partition("=")[0] for call in result.runs for word in call.setup.overrides or ()}
    assert "++workload.dataset.num_files_train" in overrides
    assert "++workload.train.seed" not in overrides
    assert "rehearsal" in {one.rule for one in checked.findings}
    for folder in Path(result.path).parents:  # what a submitter adds later is not told of a part of the tree either
        if folder.is_relative_to(checked.root):
            assert broken(str(folder)) <= LAPTOP, folder
    assert "is no submission" in " ".join((Path(plan.tree) / "README.txt").read_text().split())
    for path in (*Path(plan.tree).rglob("*_metadata.json"), *Path(plan.tree).rglob("results.json")):
        assert "no submission" in json.loads(path.read_text())["rehearsal"]
    with pytest.raises(UserError, match="holds a rehearsal already"):
        rehearsal(plan).run()


def test_sums_are_those_of_the_measured_runs(made: TrainingRehearsal) -> None:
    rates = [run.printed.samples_per_second or 0 for run in made.finished[1:]]
    results = json.loads(next(Path(made.plan.tree).rglob("results.json")).read_text())
    mean = sum(rates) / 5
    assert results["train_throughput_mean_samples_per_second"] == pytest.approx(mean)
    spread = (sum((rate - mean) ** 2 for rate in rates) / 5) ** 0.5
    assert results["train_throughput_stdev_samples_per_second"] == pytest.approx(spread)
    assert len(results["runs"]) == 6
    assert f"CoV {100 * spread / mean:.1f} %" in made.outcome(check_folder(made.plan.folder))[1][0]


PASSES, FAILS, HELD_BACK = ("success", False), ("fail", False), ("fail", True)


@pytest.mark.parametrize(
    ("warm_up", "others", "rules", "judged"),
    [
        (PASSES, PASSES, [], 0),
        (FAILS, FAILS, ["au.low"], 1),
        (HELD_BACK, HELD_BACK, ["au.low"], 4),
        (HELD_BACK, HELD_BACK, ["au.low", "dataset.size"], 1),
        (PASSES, PASSES, ["dataset.size"], 1),
        (FAILS, PASSES, ["au.low"], 1),
        (HELD_BACK, PASSES, ["au.low"], 4),
    ],
)
def test_a_host_that_alone_keeps_runs_from_passing_leaves_no_verdict(
    warm_up: tuple[str, bool], others: tuple[str, bool], rules: list[str], judged: int, tmp_path: Path
) -> None:
    plan = make_plan(tmp_path)
    run_by_hand(list(plan.overrides), str(tmp_path))
    figures = read_figures(str(tmp_path))
    asked = rehearsal(plan)
    for verdict, held_back in (warm_up, *[others] * 5):
        printed = replace(figures.printed, verdict=verdict)
        asked.finished.append(replace(figures, printed=printed, held_back=held_back))
    found = tuple(by_rule(rule, "") for rule in rules)
    checked = Checked(root="", reading="published", findings=found)
    assert asked.outcome(checked)[0] == judged


@pytest.mark.parametrize("storage", [[], ["storage.storage_type=s3", "dataset.data_folder=key"]])
def test_a_failed_run_is_on_record(
    storage: list[str], tmp_path: Path, made: TrainingRehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: RehearsalPlan, words: list[str], folder: str, command: str) -> None:
        raise DlemuError("rank 1 died\nand more")

    monkeypatch.setattr(RehearsalPlan, "run", fail)
    plan = plan_of([*made.plan.overrides, *storage], tmp_path / "other")
    with pytest.raises(DlemuError, match="rank 1 died"):
        rehearsal(plan).run()
    record = json.loads((tmp_path / "other" / REHEARSAL).read_text())
    assert [(call["label"], call["failure"]) for call in record["calls"]] == [("warm-up", "rank 1 died\nand more")]
    assert not record["complete"]
    assert "runs.count" in broken(plan.folder)


def test_mistakes_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    with pytest.raises(DatasetError, match="dlemu datagen workload=unet3d"):
        rehearsal(plan).run()
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="--org 'my lab'"):
        replace(plan, organisation="my lab")


def test_the_librarys_cores_are_measured_where_there_are_files(tmp_path: Path) -> None:
    workload = make_plan(tmp_path).workload
    assert library_cores(workload) is None
    small = make_dataset(tmp_path / "small")
    for files in (small.num_files_train, small.num_files_train - 1):
        fewer = replace(workload, dataset=replace(small, num_files_train=files))
        assert 0 < present(library_cores(fewer)) < 1


# checkpoints


Words = list[Sequence[str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Words:
    """Have every call leave DLIO's files of the published run's times, and return what was asked for."""
    asked: Words = []

    def run(words: Sequence[str], folder: str, look: Callable[[], None], launcher: Sequence[str], name: str) -> None:
        assert name == "checkpoint"
        asked.append([*launcher, *words])
        phases = [phase for phase in ("write", "read") if f"checkpoint.num_checkpoints_{phase}=0" not in words]
        measured: Any = published_run(*phases)
        shift = 600_000_000_000 if phases == ["read"] else 0
        journal = measured.exported.journal
        journal = journal.noting(wall_clock_offset_ns=journal.wall_clock_offset_ns + shift)
        measured = replace(measured, exported=replace(measured.exported, journal=journal))
        dlio = Path(folder) / "dlio"
        write_results(DlioFolders(folder=str(dlio), config_folder=str(dlio / "dlio_config")), measured)
        (Path(folder) / "console.txt").write_text("done\n")

    monkeypatch.setattr(child_run, "run_train", run)
    return asked


def clock() -> Callable[[], datetime]:
    """The moments at which the published run was called: twice, the second time ten seconds after the first ended."""
    begun = datetime(2026, 7, 2, 13, 46, 35)
    seconds = chain((0, 0, 590, 600, 600), repeat(1200))
    return lambda: begun + timedelta(seconds=next(seconds))


_OF_THE_FIXTURE = {"checkpoint.filesystem", "ranks.copied"}
"""No folder of checkpoints is there, and all ranks but one have the times of rank 0."""


def errors(checked: Checked) -> set[str]:
    """What is wrong with the tree, but for what is made up here."""
    return {one.rule for one in checked.findings if one.severity == "error"} - _OF_THE_FIXTURE


def checkpoint_rehearsal(
    folder: Path, memory_gib: float, *, launcher: str = "", now: Callable[[], datetime] | None = None
) -> CheckpointRehearsal:
    words = ("workload=llama3_8b", "ranks=8", "checkpoint.checkpoint_folder=/mnt/ckpt")
    plan = plan_of(words, folder, launcher)
    size = checkpoint_datasize(plan.workload, edition="3.0", hosts=1, memory_gib_per_host=memory_gib)
    return CheckpointRehearsal(plan=plan, size=size, report=lambda line: None, now=now or clock())


def test_two_calls_belong_together_and_break_no_rule(calls: Words, tmp_path: Path) -> None:
    checked = checkpoint_rehearsal(tmp_path, published.MEMORY_GIB, launcher="mpirun -np {ranks}").run()
    assert [words[:3] for words in calls] == [["mpirun", "-np", "8"]] * 2
    assert "checkpoint.num_checkpoints_read=0" in calls[0]
    assert "checkpoint.num_checkpoints_write=0" in calls[1]
    assert not errors(checked)
    told = [{one.rule for one in checked.findings if (one.severity == "info") == is_info} for is_info in (False, True)]
    added_later = {"systems.unfilled", "systems.pdf", "submission.code", "tool.other"}
    assert told[0] == {*_OF_THE_FIXTURE, "checkpoint.memory", "checkpoint.slowest"}
    assert told[1] == {"rehearsal", "checkpoint.duration", *added_later}
    (result,) = checked.results
    assert figures_of(result) == pytest.approx({"save": 3.076140817854296, "load": 4.983509448925309})
    sums = json.loads((Path(result.path) / "results.json").read_text())
    assert sums["save_gib_per_second"] == pytest.approx(3.076140817854296)
    record = json.loads((tmp_path / "rehearsal.json").read_text())
    assert (record["complete"], [call["label"] for call in record["calls"]]) == (True, ["write", "read"])
    with pytest.raises(UserError, match="holds a rehearsal already"):
        checkpoint_rehearsal(tmp_path, published.MEMORY_GIB).run()


def test_calls_within_one_second_have_names_of_their_own(calls: Words, tmp_path: Path) -> None:
    second = datetime(2026, 1, 1)
    moments = iter([second] * 4 + [second.replace(second=1)] * 4)
    checkpoint_rehearsal(tmp_path, published.MEMORY_GIB, now=lambda: next(moments)).run()
    record = json.loads((tmp_path / "rehearsal.json").read_text())
    assert [call["stamp"] for call in record["calls"]] == ["20260101_000000", "20260101_000001"]


@pytest.mark.parametrize(("limit_gib", "wrong"), [(None, {"systems.hosts"}), (64, set())])
def test_one_call_does_both_where_memory_can_not_hold_what_is_read(
    limit_gib: int | None, wrong: set[str], calls: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_bytes = limit_gib and limit_gib * GIB
    host = HostFacts(host="h", memory_bytes=int(published.MEMORY_GIB * GIB), memory_limit_bytes=limit_bytes)
    monkeypatch.setattr(environment, "describe_host", lambda: host)
    checked = checkpoint_rehearsal(tmp_path, 64).run()
    assert len(calls) == 1
    assert not [word for word in calls[0] if "num_checkpoints" in word]
    assert errors(checked) == wrong, "the run was on a host of 377 GiB"
    edition_tree.write_system(checkpoint_rehearsal(tmp_path / "many", 64).plan, 2, 64)
    (described,) = (tmp_path / "many").rglob("systems/*.yaml")
    assert "memory.max" not in described.read_text(), "a login node's limit is not the hosts'"


@pytest.mark.parametrize("lost", ["console.txt", "dlio/dlio_config/overrides.yaml", "dlio"])
def test_a_call_appears_in_the_tree_complete_or_not_at_all(
    lost: str, calls: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_train = child_run.run_train

    def run(words: Sequence[str], folder: str, *rest: Any) -> None:
        run_train(words, folder, *rest)
        path = Path(folder, lost)
        if lost == "dlio":
            (path / "gone.log").symlink_to(path / "nowhere")  # a file that can't be read
        else:
            path.unlink()

    monkeypatch.setattr(child_run, "run_train", run)
    with pytest.raises(SpaceError, match=r"could not be written: (?!None)"):
        checkpoint_rehearsal(tmp_path, published.MEMORY_GIB).run()
    assert not list((tmp_path / "tree").rglob("*_metadata.json"))
