"""Checkpoints from a configuration to the folder of the result, with real files and real forked ranks; and bad days."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result

from datagen.errors import SpaceError, UserError
from datagen.storage.storage_base import StorageSpec, open_storage
from dlemu.checkpoints.io_rows import READ, WHOLE, WRITE
from dlemu.checkpoints.stored import NOTE, read_note, write_note
from dlemu.cli.report import command as report_command
from dlemu.config import load
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.loop import CheckpointRank
from dlemu.jobs.checkpoint.parts import conditions, exported
from dlemu.jobs.checkpoint.plan import check_checkpoint_host
from dlemu.jobs.checkpoint.run import CHECKPOINTS
from dlemu.jobs.checkpoint.summary import Cause, CheckpointSummary
from dlemu.jobs.checkpoint.wording import kept_line, screen
from dlemu.metrics.findings import LimitedBy
from dlemu.report.units import size
from dlemu.results.answer_files import decode_untrusted
from dlemu.results.live import Progress, mark_in_progress
from dlemu.results.parts import Environment
from dlemu.runner.events import Event, JobBegan, Saved
from dlemu.runner.job import JobRequest, run_job
from dlemu.runner.job import prepare as prepare_job
from dlemu.runner.ranks import RunFailedError
from tests.checkpoints.models import SMALL_WORDS

SMALL = {
    **SMALL_WORDS,
    "ranks": "2",
    "checkpoint.num_checkpoints_write": "3",
    "checkpoint.num_checkpoints_read": "3",
    "checkpoint.time_between_checkpoints": "0",
    "checkpoint.verify": "true",
    "metric.ceiling_seconds": "0.05",
    "telemetry.enabled": "false",
    "timeout_seconds": "600",  # longer than an fsync takes while other programs write to the same disk
}


class SmallJob:
    def __init__(self, folder: Path, result: str, **settings: str) -> None:
        named = {key.replace("__", "."): value for key, value in settings.items()}
        named = {f"checkpoint.{key}" if "." not in key and key != "ranks" else key: text for key, text in named.items()}
        words = SMALL | {"checkpoint.checkpoint_folder": str(folder / "saved"), "output.folder": str(folder / result)}
        self.workload = load([f"{key}={value}" for key, value in (words | named).items()])
        self.request = JobRequest(load=lambda: self.workload, wants_verdict=False)
        self.events: list[Event] = []


def run(folder: Path, result: str = "result", **settings: str) -> CheckpointRun:
    started = SmallJob(folder, result, **settings)
    done = run_job(started.request, started.events.append, CHECKPOINTS)
    assert done is not None
    read: CheckpointRun = CHECKPOINTS.read(done.folder)
    assert done.summary == read.summary
    return read


def files_of(folder: Path, number: int) -> list[Path]:
    return sorted(path for path in (folder / "saved" / f"global_epoch1_step{number}").iterdir() if path.name != NOTE)


def test_checkpoints_are_written_read_and_their_numbers_come_out_of_the_rows(tmp_path: Path) -> None:
    done = run(tmp_path, writers="2", gpu_mtbf_hours="20")
    summary = done.summary
    assert summary.complete
    assert summary.kept == (1, 2, 3)
    assert summary.write is not None
    assert summary.read is not None
    assert summary.training is not None
    assert [part.checkpoint for part in summary.write.checkpoints] == [1, 2, 3]
    assert summary.files == 4
    assert summary.bytes == sum(path.stat().st_size for path in files_of(tmp_path, 2))
    assert {part.bytes for part in (*summary.write.checkpoints, *summary.read.checkpoints)} == {summary.bytes}
    assert summary.training.best_interval_seconds is not None
    whole = done.rows[done.rows["file"] == WHOLE]
    slowest = max((whole["ended_ns"] - whole["began_ns"])[(whole["phase"] == WRITE) & (whole["checkpoint"] == 1)])
    assert summary.write.checkpoints[0].slowest_seconds == slowest / 1e9
    assert set(exported(done).rows[["phase", "checkpoint", "rank"]].tolist()) == {
        (phase, number, rank) for phase in (WRITE, READ) for number in (1, 2, 3) for rank in (0, 1)
    }
    assert decode_untrusted(os.path.join(done.folder, "summary.json"), CheckpointSummary) == summary
    assert not (tmp_path / "result" / "live").exists()
    assert not [path for path in (tmp_path / "saved").iterdir() if path.name.startswith(".")]


def test_the_last_few_are_kept_and_an_earlier_run_of_the_same_kind_makes_room(tmp_path: Path) -> None:
    run(tmp_path, "first", num_checkpoints_read="0")
    again = run(tmp_path, "again", keep_last="1", num_checkpoints_read="1")
    assert sorted(os.listdir(tmp_path / "saved")) == ["global_epoch1_step3"]
    assert again.summary.kept == (3,)
    assert any("3 checkpoints of an earlier run" in issue for issue in again.summary.issues)
    with pytest.raises(UserError, match=r"num_checkpoints_read is 2, but this run keeps 1.*keep_last"):
        run(tmp_path, "third", keep_last="1", num_checkpoints_read="2")
    with pytest.raises(UserError, match=r"keeps 1: wanted at most as many; checkpoint.num_checkpoints_write"):
        run(tmp_path, "fourth", num_checkpoints_write="1", num_checkpoints_read="2")
    words = r"holds the checkpoint of another run: small by 2 ranks from rank 0 on, .* in format torch; wanted"
    with pytest.raises(UserError, match=words):
        run(tmp_path, "other", **{"model.num_layers": "3", "checkpoint.num_checkpoints_write": "3"})


def test_ranks_of_a_larger_job_write_its_files(tmp_path: Path) -> None:
    cut = "{tensor: 2, pipeline: 2, zero_stage: 1}"
    done = run(tmp_path, job_ranks="8", first_rank="4", num_checkpoints_write="1", num_checkpoints_read="1",
               **{"model.parallelism": cut})  # fmt: skip
    assert [path.name for path in files_of(tmp_path, 1)] == [
        "zero_pp_rank_1_mp_rank_0_optim_states.pt",
        "zero_pp_rank_1_mp_rank_1_optim_states.pt",
    ]
    assert conditions(done.summary, done.facts).work["ranks_of_job"] == 8
    whole = {"format": "distcp", "checkpoint.checkpoint_folder": str(tmp_path / "whole")}
    run(tmp_path, "whole", ranks="4", num_checkpoints_write="1", num_checkpoints_read="0", **whole)
    part = run(tmp_path, "part", ranks="2", job_ranks="4", num_checkpoints_write="0", num_checkpoints_read="1", **whole)
    assert part.summary.read is not None, "rank 0's metadata is of all ranks"


def test_training_goes_on_while_asynchronous_ones_drain(tmp_path: Path) -> None:
    settings = {"asynchronous": "true", "time_between_checkpoints": "0.2", "snapshot_gb_per_second": "0.02"}
    summary = run(tmp_path, num_checkpoints_write="2", num_checkpoints_read="2", **settings).summary
    behind = summary.asynchronous
    assert behind is not None
    assert behind.safe_seconds >= behind.snapshot_seconds
    assert summary.write is not None
    for part in summary.write.checkpoints:
        assert part.safe_seconds >= part.stall_seconds >= behind.snapshot_seconds
        assert part.safe_seconds >= behind.snapshot_seconds + part.wall_seconds  # rates are of the writing alone
    assert behind.au_percent <= 100 * 0.2 / (0.2 + behind.snapshot_seconds)


def test_a_damaged_checkpoint_ends_the_reading_and_is_named(tmp_path: Path) -> None:
    run(tmp_path, "wrote", num_checkpoints_read="0", num_checkpoints_write="1")
    files_of(tmp_path, 1)[1].unlink()
    with pytest.raises(RunFailedError, match="is missing: the checkpoint is incomplete") as failed:
        run(tmp_path, num_checkpoints_write="0", num_checkpoints_read="1")
    assert failed.value.exit_status == 2


def test_what_is_not_complete_or_of_another_model_is_not_read(tmp_path: Path) -> None:
    run(tmp_path, "wrote", num_checkpoints_read="0", num_checkpoints_write="2")
    read = {"num_checkpoints_write": "0", "num_checkpoints_read": "1"}
    with pytest.raises(UserError, match="holds the checkpoint of another run: small by 2 ranks"):
        run(tmp_path, **read, **{"model.num_layers": "3"})
    with pytest.raises(UserError, match=r"by 2 ranks .*; wanted small by 4 ranks .*: read it with the settings that"):
        run(tmp_path, **read, ranks="4")
    with pytest.raises(UserError, match=r"num_checkpoints_read is 3, but .* holds 2"):
        run(tmp_path, num_checkpoints_write="0", num_checkpoints_read="3")
    with pytest.raises(UserError, match="recovery_rank_shift reads what another host's rank wrote: wanted two or"):
        run(tmp_path, **read, recovery_rank_shift="true")
    placed = Mock(rank=2, node=0, local_rank=1, local_size=2, size=4)  # round robin on two hosts
    with pytest.raises(UserError, match="equally many ranks, placed host by host"):
        CheckpointRank(Mock(), placed, Mock(), Mock())
    note = tmp_path / "saved" / "global_epoch1_step1" / NOTE
    note.write_text(note.read_text().replace('"complete": true', '"complete": false'))
    with pytest.raises(UserError, match="is not complete: its run ended before"):
        run(tmp_path, **read)


def fail_in(monkeypatch: pytest.MonkeyPatch, call: str, part: str, fail: Callable[[], None]) -> None:
    """Have a call fail once it is about a file whose path has `part`."""
    real = getattr(os, call)

    def called(descriptor: int, *args: object) -> object:
        if part in os.readlink(f"/proc/self/fd/{descriptor}"):
            fail()
        return real(descriptor, *args)

    monkeypatch.setattr(os, call, called)


def test_a_full_disk_leaves_what_is_complete_and_removes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_space = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    fail_in(monkeypatch, "pwrite", "step2/.zero_pp_rank_1_mp_rank_0_optim", no_space)
    started = SmallJob(tmp_path, "result")
    with pytest.raises(RunFailedError, match=r"the disk is full: checkpoint .*step2/zero_pp_rank_1") as failed:
        run_job(started.request, started.events.append, CHECKPOINTS)
    assert failed.value.exit_status == 2
    assert os.listdir(tmp_path / "saved") == ["global_epoch1_step1"]
    summary = CHECKPOINTS.read(str(tmp_path / "result")).summary
    assert (summary.complete, summary.kept) == (False, (1,))
    assert summary.verdict.startswith("INCOMPLETE: the disk is full")
    assert "complete and kept: checkpoint 1" in summary.verdict
    (files,) = re.findall(rf"checkpoint 2 was being written: (\d) of {summary.files} files", summary.verdict)
    assert 1 <= int(files) < summary.files, "rank 1 had written its first file"
    assert not [event for event in started.events if not isinstance(event, Progress | JobBegan | Saved)]


@pytest.mark.parametrize(
    ("call", "part", "kept"), [("pwrite", "step2/.zero", [1]), ("preadv", "step2/zero", [1, 2, 3])]
)
def test_a_rank_that_is_killed_ends_all_and_leaves_what_is_complete(
    call: str, part: str, kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in(monkeypatch, call, part, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RunFailedError, match="SIGKILL"):
        run(tmp_path, ranks="2")
    assert sorted(os.listdir(tmp_path / "saved")) == [f"global_epoch1_step{number}" for number in kept]
    assert not CHECKPOINTS.read(str(tmp_path / "result")).summary.complete


def test_what_a_killed_run_left_of_a_checkpoint_is_named_and_removed_only_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed while it saved its result: facts.json comes last of what was measured."""
    result, saved = tmp_path / "result", tmp_path / "saved"
    monkeypatch.setattr("dlemu.runner.job.drop_live", lambda folder: None)
    run(tmp_path)
    for name in ("facts.json", "summary.json"):
        (result / name).unlink()
    os.truncate(result / "checkpoints.parquet", 100)
    third, theirs = saved / "global_epoch1_step3", saved / "global_epoch1_step3" / "notes.txt"
    storage = open_storage(StorageSpec())
    note = read_note(storage, str(third))
    assert note is not None
    write_note(storage, str(third), replace(note, complete=False), fsync=False)
    theirs.write_text("a user's own")

    def report(*words: str) -> Result:
        return CliRunner().invoke(report_command, ["--json", *words, str(result)])

    assert f"dlemu report {result}" in (result / "live" / "README").read_text()
    named = report()
    assert (named.exit_code, json.loads(named.stdout)["complete"]) == (3, False)
    assert f"{third}, not complete: " in named.stderr
    assert "--remove-unfinished" in named.stderr
    with mark_in_progress(str(result)):
        assert isinstance(report("--remove-unfinished").exception, UserError)
    assert len(files_of(tmp_path, 3)) > 1
    report("--remove-unfinished")
    assert files_of(tmp_path, 3) == [theirs]
    assert len(files_of(tmp_path, 2)) > 1
    assert "not complete: " not in report("--remove-unfinished").stderr


def test_there_must_be_room_and_a_folder_that_all_hosts_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = SmallJob(tmp_path, "result").workload
    job = prepare_job(CHECKPOINTS, workload, 2)[0]
    check_checkpoint_host(job, 2)
    monkeypatch.setattr("dlemu.ranks.process_control.time", SimpleNamespace(sleep=lambda seconds: None))
    with pytest.raises(UserError, match="which this host does not share with rank 0:"):
        check_checkpoint_host(replace(job, seed=1), 1)
    monkeypatch.setattr("datagen.storage.posix.Storage.free_bytes", lambda *_: 2 * job.plan.sizes.bytes)
    with pytest.raises(SpaceError, match=r"3 checkpoints of .* need .* are free there: set checkpoint.keep_last"):
        check_checkpoint_host(job, 2)
    settings = replace(workload.checkpoint, keep_last=1)
    check_checkpoint_host(replace(job, workload=replace(workload, checkpoint=settings)), 2)
    monkeypatch.setattr("datagen.storage.posix.Storage.held_bytes", 1 << 60)  # as of a storage that gathers files
    monkeypatch.setattr("dlemu.jobs.checkpoint.plan.host_memory", lambda: SimpleNamespace(available_bytes=600 << 20))
    with pytest.raises(SpaceError, match=r"the buffers of 2 ranks need .* of memory on this host"):
        check_checkpoint_host(job, 2)


def test_what_stays_is_said_with_a_command_that_removes_just_that(tmp_path: Path) -> None:
    """Beside it lies the checkpoint of an earlier, longer run."""
    folder = tmp_path / "a b"
    run(folder, "first", num_checkpoints_write="4", num_checkpoints_read="0")
    done = run(folder, "again", num_checkpoints_write="3", keep_last="2", num_checkpoints_read="2")
    line = kept_line(done.summary)
    assert f"2 checkpoints, {size(2 * done.summary.bytes)}, in {folder}/saved" in line
    assert line in [said.value for said in screen(done.summary, done.folder).lines]
    command = line.partition("to remove them: ")[2]
    assert sorted(os.listdir(folder / "saved")) == [f"global_epoch1_step{number}" for number in (2, 3, 4)]
    subprocess.run(["bash", "-c", command], check=True)
    assert os.listdir(folder / "saved") == ["global_epoch1_step4"]
    assert "rm" not in kept_line(replace(done.summary, environment=Environment())), "an object store's"
    assert done.summary.write is not None
    limit = LimitedBy[Cause](what="storage", confidence="medium")
    idle = replace(done.summary.write, limited_by=limit, call_percent=0.4, fsync_percent=0.0, cpu_wait_percent=0.0)
    lines = screen(replace(done.summary, write=idle), "").lines
    assert "limited by storage, confidence medium" in [said.value for said in lines], "no share of time to show"
    only_read = run(folder, "read", num_checkpoints_write="0", num_checkpoints_read="1")
    assert {said.label for said in screen(only_read.summary, "").lines} - {"", "to do"} == {"reads"}
