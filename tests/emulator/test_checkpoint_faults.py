"""Every call to the storage of a run of checkpoints: failed, hanging, or of a pipe, it is named with its path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.checkpoints.stored import NOTE
from dlemu.config import load
from dlemu.jobs.checkpoint.plan import CheckpointJob
from dlemu.jobs.checkpoint.run import CHECKPOINTS
from dlemu.ranks import Comm
from dlemu.runner.job import prepare as prepare_job
from tests import faulty_storage


def job(folder: Path, *changes: str) -> CheckpointJob:
    """A run of one rank that writes two checkpoints, keeps one and reads it."""
    few = ("num_checkpoints_write=2", "num_checkpoints_read=1", "keep_last=1", "time_between_checkpoints=0")
    saving = (f"checkpoint_folder={folder / 'saved'}", "evict_page_cache=true", *few)
    words = ["model.name=small", "model.layer_parameters=[1000]", "storage.storage_type=tests.faulty_storage"]
    words += ["metric.ceiling_seconds=0", "telemetry.enabled=false", "ranks=1", f"output.folder={folder / 'run'}"]
    workload = load([*words, *(f"checkpoint.{one}" for one in saving), *changes])
    job: CheckpointJob = prepare_job(CHECKPOINTS, workload, 1)[0]
    return job


@pytest.mark.slow
def test_each_call_that_fails_is_a_message_with_its_path(tmp_path: Path) -> None:
    whole = job(tmp_path / "whole")
    with faulty_storage.plan() as plan:
        assert CHECKPOINTS.run_rank(whole, Comm(), None) is not None
    sites = [(call, at) for call, count in plan.calls.items() for at in range(1, count + 1) if call != "list"]
    assert {"folder", "create", "write", "sync", "rename", "sync_folder", "remove", "open", "read"} <= set(plan.calls)
    for number, (call, at) in enumerate(sites):
        for how, kind in (("EIO", UserError), ("ENOSPC", SpaceError if call in ("write", "sync") else UserError)):
            folder = tmp_path / f"{number}-{how}"
            failing = job(folder)
            with faulty_storage.plan(call, at, how) as failed:
                error = failure_of(failing)
            if error is None:
                assert os.path.basename(failed.path) == NOTE, "a checkpoint goes even if it can't be marked as going"
                assert len(list((folder / "saved").iterdir())) == 1
            else:
                assert type(error) in (kind, SpaceError)
                assert f"{folder / 'saved'}" in str(error)


def failure_of(failing: CheckpointJob) -> DlemuError | None:
    try:
        CHECKPOINTS.run_rank(failing, Comm(), None)
    except DlemuError as error:
        return error
    return None


@pytest.mark.parametrize(("call", "what"), [("sync", "fsync of .*saved.*"), ("sync_folder", "fsync of the folder .*")])
def test_an_fsync_that_hangs_is_named_with_its_path(call: str, what: str, tmp_path: Path) -> None:
    failing = job(tmp_path, "timeout_seconds=0.3")
    at = 2 if call == "sync" else 1  # the first is that of the note
    with (
        faulty_storage.plan(call, at, "hang"),
        pytest.raises(DlemuError, match=f"^{what} took longer than 0.3 s") as caught,
    ):
        CHECKPOINTS.run_rank(failing, Comm(), None)
    assert caught.value.exit_status == 3
    assert str(tmp_path / "saved") in str(caught.value)


@pytest.mark.parametrize("evicts", ["true", "false"])
def test_an_own_file_that_became_a_pipe_is_named_and_hangs_nobody(evicts: str, tmp_path: Path) -> None:
    written = job(tmp_path, "checkpoint.num_checkpoints_read=0")
    CHECKPOINTS.run_rank(written, Comm(), None)
    (path,) = (path for path in (tmp_path / "saved").rglob("*") if path.is_file() and not path.name.startswith("."))
    path.unlink()
    os.mkfifo(path)
    changes = ["checkpoint.num_checkpoints_write=0", f"checkpoint.evict_page_cache={evicts}"]
    reads = job(tmp_path, *changes, f"output.folder={tmp_path / 'again'}")
    with pytest.raises(UserError, match=f"^{path} can't be .*: it is a pipe, wanted a regular file"):
        CHECKPOINTS.run_rank(reads, Comm(), None)
