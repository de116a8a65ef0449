"""Everything is checked before data is made, what is told of that, and a run leaves nothing that it did not measure."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import Mock

import pytest

from datagen import manifest
from datagen.errors import DatasetError, SpaceError, UserError
from datagen.generate import prepare as prepare_dataset
from datagen.manifest import Manifest
from datagen.storage.storage_base import open_storage
from datagen.thread_pool import Progress as Share
from dlemu.config import load
from dlemu.config.schema import Checkpoint, Model, Reader, Workflow
from dlemu.doctor.check_base import Facts
from dlemu.doctor.host import check_configuration
from dlemu.jobs.training.preflight import check_before_making
from dlemu.jobs.training.result import TRAINING
from dlemu.ranks import Comm
from dlemu.runner.datasets import _progress, make_share, verify_share
from dlemu.runner.events import DatasetVerified, Event
from dlemu.runner.job import checked as check
from dlemu.runner.job import prepare
from dlemu.runner.run_folder import make_folder, new_folder
from tests.runs import make_job

DATA_ALONE = ("workflow.train=false", "workflow.generate_data=true")


def settings(folder: Path, *changes: str) -> list[str]:
    return [
        "workload=default",
        f"dataset.data_folder={folder / 'data'}",
        "dataset.num_files_train=8",
        "dataset.record_length_bytes=1000",
        f"output.folder={folder / 'a' / 'b' / 'run'}",
        *changes,
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["workflow.train=false", "workflow.checkpoint=false"], "includes nothing else"),
        ([*DATA_ALONE, "workflow.evaluation=true"], "includes evaluation, which is part of training"),
        ([*DATA_ALONE, "dataset.data_folder=s3://bucket/data"], "dataset.data_folder is 's3://bucket/data'"),
        ([*DATA_ALONE, "storage.storage_type=s4"], "storage.storage_type"),
        ([*DATA_ALONE, "dataset.format=npx"], "npz"),
        (["workflow.generate_data=true", "dataset.data_folder=s3://bucket/data"], "dataset.data_folder"),
    ],
)
def test_what_can_not_be_done_is_refused_before_anything_is_made(words: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=text):
        check(load(settings(tmp_path, *words)))


def test_data_alone_may_be_asked_for_also_of_a_workload_that_could_not_be_trained(tmp_path: Path) -> None:
    check(load(settings(tmp_path, *DATA_ALONE, "workflow.checkpoint=true", "reader.data_loader=nonsense")))


def test_ranks_that_hold_no_whole_copies_of_the_model_are_refused_before_data_is_made(tmp_path: Path) -> None:
    for ranks, fit in ((6, False), (8, True)):
        words = ["model.parallelism.tensor=4", "model.num_layers=8", "workflow.checkpoint=true", f"ranks={ranks}"]
        workload = load(settings(tmp_path, *words, "dataset.num_files_train=99"))
        alone = load([*words, "workflow.train=false", "checkpoint.num_checkpoints_write=1"])
        if fit:
            check_before_making(workload, ranks)
            assert {check_configuration(Facts(one)).level for one in (workload, alone)} == {"ok"}
            continue
        for refusing in (
            partial(check_before_making, workload, ranks),
            partial(TRAINING.plan, workload, ranks, wants_verdict=False),
            partial(check_configuration, Facts(workload)),
            partial(check_configuration, Facts(alone)),
        ):
            with pytest.raises(UserError, match="not a multiple of the 4 ranks"):
                refusing()


def test_too_few_samples_are_found_before_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="8 samples"):
        check_before_making(load(settings(tmp_path, "reader.batch_size=5")), 2)
    check_before_making(load(settings(tmp_path, "reader.batch_size=4")), 2)


def test_the_folder_of_another_run_is_refused_before_data_is_made(tmp_path: Path) -> None:
    workload = load(settings(tmp_path))
    make_folder(workload.output.folder, 1)
    Path(workload.output.folder, "summary.json").write_text("{}")
    with pytest.raises(SpaceError, match="holds another result"):
        check(workload)


def test_a_folder_that_can_not_be_made_is_refused_before_data_is_made(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(SpaceError, match=f"{tmp_path / 'a'} is not a folder; set output"):
        check(load(settings(tmp_path)))
    check(load(settings(tmp_path, *DATA_ALONE)))


def test_a_dataset_that_is_not_there_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"dlemu datagen dataset.data_folder={tmp_path / 'data'}"):
        prepare(TRAINING, load(settings(tmp_path)), 1)
    assert list(tmp_path.iterdir()) == []


def test_only_folders_that_the_run_made_go_with_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    folder = make_folder(str(tmp_path / "mine" / "a" / "run"), 1)
    assert (tmp_path / "mine" / "a" / "run" / "live").is_dir()
    folder.drop()
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"], "an empty folder of somebody else's stays"
    folder = make_folder(str(tmp_path / "mine" / "a" / "run"), 1)
    (tmp_path / "mine" / "a" / "note").write_text("kept")
    folder.drop()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "mine", "note"]


def test_a_run_that_was_killed_before_it_measured_anything_gives_way(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(str(tmp_path), 1)
        (tmp_path / "live" / "requests").mkdir()
        (tmp_path / "live" / "requests" / "host-1.requests").touch()


def test_processes_that_begin_at_once_get_a_folder_each() -> None:
    """None of them sees that of another before it is made."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(writer, new_folder("unet3d").encode())
        os._exit(0)
    os.waitpid(process, 0)
    os.close(writer)
    with open(reader) as theirs:
        assert theirs.read() != new_folder("unet3d")


def test_more_workers_than_files_may_be_open_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, set_limit = {resource.RLIMIT_NOFILE: (256, 9000)}, Mock()
    monkeypatch.setattr("dlemu.jobs.training.preflight.resource.setrlimit", set_limit)
    monkeypatch.setattr("dlemu.jobs.training.preflight.resource.getrlimit", lambda kind: limits.get(kind, (-1, -1)))
    TRAINING.check_host(make_job(reader=Reader(read_threads=5)), 1)
    assert set_limit.call_args.args[1] == (64 + 5 * (6 + 3 * 512), 9000), "files that each thread's reader keeps open"
    limits[resource.RLIMIT_NOFILE] = (256, 256)
    with pytest.raises(SpaceError, match="40 takes 304 file descriptors per rank and the limit is 256"):
        TRAINING.check_host(make_job(reader=Reader(read_threads=40)), 1)


@pytest.mark.parametrize("kind", ["rank_zero", "all_ranks"])
def test_checkpoints_of_training_write_over_nothing_on_a_host_of_their_own(
    kind: Literal["rank_zero", "all_ranks"], tmp_path: Path
) -> None:
    theirs = tmp_path / "saved" / "epoch_1_block_1" / "rank_1.ckpt"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    job = make_job(
        workflow=Workflow(checkpoint=True), checkpoint=Checkpoint(checkpoint_folder=str(tmp_path / "saved"), type=kind)
    )
    assert job.saves
    large = replace(job.workload, model=Model(model_size_bytes=10**11))
    assert replace(job, workload=large).timeout_seconds == pytest.approx(1e4)
    assert make_job().timeout_seconds == 600
    if kind == "all_ranks":
        with pytest.raises(UserError, match=r"epoch_1_block_1 holds files that dlemu did not write"):
            TRAINING.check_host(job, 1)
    else:  # only rank 0 writes, whose host has been looked at
        TRAINING.check_host(job, 1)
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["epoch_1_block_1"]


def test_what_a_resumed_dataset_had_already_does_not_count_as_speed() -> None:
    events: list[Event] = []
    report = _progress(Comm(), "in place", events.append)
    assert report is not None
    report(Share(90, 900_000_000, 1_000_000_000, 100, 0.0))
    report(Share(91, 910_000_000, 1_000_000_000, 100, 10.0))
    assert str(events[-1]) == " 91 % 91 files in place  1 MB/s  0:01:30 left"


def test_nothing_is_made_on_a_host_that_does_not_share_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlemu.ranks.process_control.time", SimpleNamespace(sleep=lambda seconds: None))
    workload = load(settings(tmp_path, f"dataset.data_folder={tmp_path}", "dataset.num_files_train=6"))
    prepare_dataset(workload.dataset)
    storage = open_storage(workload.storage_spec)
    comm: Any = SimpleNamespace(rank=1, size=2, node=1, local_rank=0, local_size=1)
    seen = manifest.read(str(tmp_path), storage)
    comm.broadcast, comm.all_reduce_max, comm.gather = lambda _: seen, lambda _: 0, lambda _: None
    make_share(workload, comm, lambda _: None)
    assert len(list((tmp_path / "train").iterdir())) == 3
    other = Manifest(spec=workload.dataset, made_at="1999-01-01T00:00:00+00:00")
    comm.broadcast = lambda _: other
    shutil.rmtree(tmp_path / "train")
    with pytest.raises(UserError, match="which this host does not share with rank 0"):
        make_share(workload, comm, lambda _: None)
    assert not (tmp_path / "train").exists()
    manifest.write(str(tmp_path), Manifest(spec=workload.dataset, complete=True), storage)
    (tmp_path / "train").mkdir()
    make_share(workload, comm, lambda _: None)  # a whole copy


def test_what_is_wrong_is_told_before_it_is_raised(tmp_path: Path) -> None:
    workload = load(settings(tmp_path, f"dataset.data_folder={tmp_path}"))
    events: list[Event] = []
    make_share(workload, Comm(), events.append)
    verify_share(workload, Comm(), events.append)
    assert isinstance(verified := events[-1], DatasetVerified)
    assert verified.findings == ()
    min((tmp_path / "train").glob("img*")).unlink()
    with pytest.raises(DatasetError, match=r"1 of 8 files in .* are wrong"):
        verify_share(workload, Comm(), events.append)
    assert isinstance(verified := events[-1], DatasetVerified)
    assert [finding.message for finding in verified.findings] == ["there is no such file"]
