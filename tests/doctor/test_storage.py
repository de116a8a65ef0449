"""Checks of the file system, its device, the dataset, and whether the ranks fit with it, tell good from bad."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import DatasetError, UserError
from datagen.inspection import Dataset
from dlemu.comm.environment import StorageFacts
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.doctor import direct_reads, file_system, free_space, page_cache
from dlemu.doctor import read_ahead as read_ahead_check
from dlemu.doctor import scheduler as scheduler_check
from dlemu.doctor._block_device import BlockDevice, block_device
from dlemu.doctor.check_base import Check, Facts
from dlemu.jobs.training.host_checks import dataset_files, ranks_fit
from tests.datasets import make_dataset
from tests.doctor.workloads import small


def test_a_dataset_that_is_not_there_yet_is_no_failure(tmp_path: Path) -> None:
    facts = Facts(small(tmp_path / "none"))
    check = dataset_files.check(facts)
    assert facts.usable_dataset is None
    assert check.level == "warn"
    assert check.advice.startswith("dlemu datagen")
    assert facts.folder == str(tmp_path), "the nearest folder that exists stands for it"
    room = free_space.check(facts)
    assert room is not None
    assert (room.level, room.wanted) == ("ok", "960,000 bytes for the dataset")
    assert page_cache.check(facts) is None
    assert ranks_fit.check(facts) is None


def test_a_damaged_dataset_fails_and_a_good_one_passes(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    workload = small(tmp_path)
    facts = Facts(workload)
    check = dataset_files.check(facts)
    assert isinstance(facts.dataset, Dataset)
    assert (check.level, "24 training files" in check.observed) == ("ok", True)
    assert free_space.check(facts) is None
    fit = ranks_fit.check(facts)
    assert fit is not None
    assert (fit.level, "6 steps per epoch" in fit.observed) == ("ok", True)
    with pytest.raises(UserError, match="step"):
        ranks_fit.check(Facts(replace(workload, ranks=7)))
    next((tmp_path / "train").glob("*")).unlink()
    damaged = Facts(workload)
    assert damaged.usable_dataset is None
    with pytest.raises(DatasetError):
        dataset_files.check(damaged)


def test_a_dataset_smaller_than_memory_is_warned_of_unless_the_cache_is_passed_by_or_emptied(tmp_path: Path) -> None:
    make_dataset(tmp_path)

    def check(*overrides: str) -> Check | None:
        return page_cache.check(Facts(small(tmp_path, *overrides)))

    levels = [
        check.level
        for check in (check(), check("reader.odirect=true"), check("reader.evict_page_cache=epochs"))
        if check is not None
    ]
    assert levels == ["warn", "ok", "ok"]
    assert page_cache.judge(1 << 60, 1 << 40).level == "ok"
    assert "part of the reads" in page_cache.judge(2 << 30, 1 << 30).observed


def test_too_little_space_for_the_dataset_fails() -> None:
    assert free_space.judge(10**12, 999.0).level == "ok"
    assert free_space.judge(10**12, 1001.0).level == "fail"


def test_a_file_system_in_memory_is_no_drive() -> None:
    assert file_system.judge(StorageFacts(folder="/d", file_system="tmpfs", device="tmpfs")).level == "warn"
    assert file_system.judge(StorageFacts(folder="/d", file_system="xfs", device="/dev/x")).level == "ok"


def test_no_o_direct_fails_only_who_asks_for_it(tmp_path: Path) -> None:
    folder, absent = str(tmp_path), str(tmp_path / "absent.npz")
    assert direct_reads.look(folder, absent, direct=False).level == "warn"
    assert direct_reads.look(folder, absent, direct=True).level == "fail"
    direct_reads.look(folder, None, direct=True)
    assert not list(tmp_path.iterdir()), "the file of the trial is gone"


def make_device(sys: Path, folder: Path, **queue: str) -> None:
    """Lay out what the kernel shows of a partition of a disk, with the numbers of the folder's device."""
    disk = sys / "devices" / "nvme0n1"
    part = disk / "nvme0n1p2"
    (disk / "queue").mkdir(parents=True)
    part.mkdir()
    (part / "partition").write_text("2\n")
    for name, text in queue.items():
        (disk / "queue" / name).write_text(text + "\n")
    number = os.stat(folder).st_dev
    (sys / "dev" / "block").mkdir(parents=True)
    (sys / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}").symlink_to(part)


def test_a_partition_is_looked_up_on_its_disk(tmp_path: Path) -> None:
    make_device(tmp_path / "sys", tmp_path, read_ahead_kb="128", scheduler="none [bfq] kyber", iostats="0")
    device = block_device(str(tmp_path), "/dev/no such", sys=str(tmp_path / "sys"))
    assert device == BlockDevice(name="nvme0n1", read_ahead_kib=128, scheduler="bfq", counts=False)
    assert block_device(str(tmp_path), "server:/export", sys=str(tmp_path / "nothing")) is None


def device(**changes: Any) -> BlockDevice:
    facts: dict[str, Any] = {"name": "nvme0n1", "read_ahead_kib": 4096, "scheduler": "none", "counts": True}
    return BlockDevice(**(facts | changes))


@pytest.mark.parametrize(
    ("overrides", "read_ahead_kib", "level"),
    [
        (["workload=unet3d"], 128, "warn"),
        (["workload=unet3d"], 4096, "ok"),
        (["workload=bert"], 128, "ok"),
        (["workload=unet3d", "reader.odirect=true"], 128, "ok"),
    ],
)
def test_little_read_ahead_matters_to_large_samples_through_the_cache(
    overrides: list[str], read_ahead_kib: int, level: str
) -> None:
    facts = Facts(load(overrides))
    check = read_ahead_check.judge(
        device(read_ahead_kib=read_ahead_kib), facts.demand.sample_bytes, facts.workload.reader.odirect
    )
    assert check.level == level


def test_schedulers_that_hold_requests_back_are_warned_of() -> None:
    assert scheduler_check.judge(device()).level == "ok"
    assert scheduler_check.judge(device(scheduler="bfq")).level == "warn"
    assert "iostats" in scheduler_check.judge(device(counts=False)).advice


def test_a_folder_without_a_block_device_is_said_to_have_none() -> None:
    facts = Facts(Workload())
    vars(facts).update(device=None, file_system=StorageFacts(folder="/d", file_system="nfs4"))
    assert "nfs4" in scheduler_check.check(facts).observed
    assert read_ahead_check.check(facts) is None


def test_a_storage_without_local_folders_has_no_device_nor_page_cache_to_look_at(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    bucket = "storage.storage_type=tests.doctor.bucket"
    facts = Facts(small(tmp_path, bucket))
    assert facts.usable_dataset is not None
    assert "tests.doctor.bucket, not a file system of this host" in file_system.check(facts).observed
    assert scheduler_check.check(facts).observed.endswith("is behind tests.doctor.bucket")
    for module in (read_ahead_check, direct_reads, page_cache, free_space):
        assert module.check(facts) is None
    assert free_space.check(Facts(small(tmp_path / "none", bucket))) is None
    with pytest.raises(UserError, match="no page cache to read past"):
        direct_reads.check(Facts(small(tmp_path, bucket, "reader.odirect=true")))
