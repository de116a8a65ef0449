"""A rehearsal of a checkpointing result: its calls, what is laid out, and that the check finds nothing in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.contrib.mlperf.check.checkpoint_rules import figures_of
from dlemu.contrib.mlperf.check.judge import Checked
from dlemu.contrib.mlperf.rehearsal.datasize import checkpoint_datasize
from dlemu.contrib.mlperf.rehearsal.rehearse import CheckpointRehearsal
from dlemu.contrib.mlperf.tests.test_rehearsal import plan_of
from dlemu.dlio.config import DlioFolders
from dlemu.dlio.results import write_results
from dlemu.extend import SpaceError
from dlemu.runner import child_run
from tests.dlio import published_checkpoints as published
from tests.dlio.test_dlio_checkpoints import published_run

Words = list[Sequence[str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Words:
    """Have every call leave DLIO's files of the published run's times, and return what was asked for."""
    asked: Words = []

    def run(words: Sequence[str], folder: str, look: Callable[[], None], launcher: Sequence[str], name: str) -> None:
        assert name == "checkpoint"
        asked.append([*launcher, *words])
        phases = [
            phase
            for phase, none in (
                ("write", "checkpoint.num_checkpoints_write=0"),
                ("read", "checkpoint.num_checkpoints_read=0"),
            )
            if none not in words
        ]
        measured: Any = published_run(*phases)
        shift = 600_000_000_000 if phases == ["read"] else 0
        journal = measured.run.journal
        journal = journal.noting(wall_clock_offset_ns=journal.wall_clock_offset_ns + shift)
        measured = replace(measured, run=replace(measured.run, journal=journal))
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


def rehearsal(
    folder: Path, memory_gib: float, *, launcher: str = "", now: Callable[[], datetime] | None = None
) -> CheckpointRehearsal:
    words = ("workload=llama3_8b", "ranks=8", "checkpoint.checkpoint_folder=/mnt/ckpt")
    plan = plan_of(words, folder, launcher)
    size = checkpoint_datasize(plan.workload, edition="3.0", hosts=1, memory_gib_per_host=memory_gib)
    return CheckpointRehearsal(plan=plan, size=size, report=lambda line: None, now=now or clock())


def test_two_calls_belong_together_and_break_no_rule(calls: Words, tmp_path: Path) -> None:
    checked = rehearsal(tmp_path, published.MEMORY_GIB, launcher="mpirun -np {ranks}").run()
    assert [words[:3] for words in calls] == [["mpirun", "-np", "8"]] * 2
    assert "checkpoint.num_checkpoints_read=0" in calls[0]
    assert "checkpoint.num_checkpoints_write=0" in calls[1]
    assert not errors(checked)
    assert {one.rule for one in checked.findings if one.severity != "info"} == {
        *_OF_THE_FIXTURE,
        "checkpoint.memory",
        "checkpoint.slowest",
    }
    assert {one.rule for one in checked.findings if one.severity == "info"} == {
        "rehearsal",
        "tool.other",
        "checkpoint.duration",
        "systems.unfilled",
        "systems.pdf",
        "submission.code",
    }
    (result,) = checked.results
    assert figures_of(result) == pytest.approx({"save": 3.076140817854296, "load": 4.983509448925309})
    sums = json.loads((Path(result.path) / "results.json").read_text())
    assert sums["save_gib_per_second"] == pytest.approx(3.076140817854296)
    record = json.loads((tmp_path / "rehearsal.json").read_text())
    assert (record["complete"], [call["label"] for call in record["calls"]]) == (True, ["write", "read"])
    with pytest.raises(UserError, match="holds a rehearsal already"):
        rehearsal(tmp_path, published.MEMORY_GIB).run()


def test_calls_within_one_second_have_names_of_their_own(calls: Words, tmp_path: Path) -> None:
    second = datetime(2026, 1, 1)
    moments = iter([second] * 4 + [second.replace(second=1)] * 4)
    rehearsal(tmp_path, published.MEMORY_GIB, now=lambda: next(moments)).run()
    record = json.loads((tmp_path / "rehearsal.json").read_text())
    assert [call["stamp"] for call in record["calls"]] == ["20260101_000000", "20260101_000001"]


def test_one_call_does_both_where_memory_can_not_hold_what_is_read(calls: Words, tmp_path: Path) -> None:
    checked = rehearsal(tmp_path, 64).run()
    assert len(calls) == 1
    assert not [word for word in calls[0] if "num_checkpoints" in word]
    assert errors(checked) == {"systems.hosts"}, "the run was on a host of 377 GiB"


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
        rehearsal(tmp_path, published.MEMORY_GIB).run()
    assert not list((tmp_path / "tree").rglob("*_metadata.json"))
