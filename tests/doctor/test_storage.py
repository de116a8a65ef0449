"""Checks of the file system, its device, the dataset, and whether the ranks fit with it, tell good from bad."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datagen.errors import DatasetError, UserError
from datagen.inspection import Dataset
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.doctor import storage
from dlemu.doctor.check_base import Check, Facts
from dlemu.jobs.training.host_checks import check_dataset, check_ranks
from dlemu.machine.environment import StorageFacts
from dlemu.telemetry import DeviceFacts
from tests.datasets import make_dataset
from tests.doctor.workloads import small
from tests.runs import present


def test_a_dataset_that_is_not_there_yet_is_no_failure(tmp_path: Path) -> None:
    facts = Facts(small(tmp_path / "none"))
    check = check_dataset(facts)
    assert facts.usable_dataset is None
    assert check.level == "warn"
    assert check.advice.startswith("dlemu datagen")
    assert facts.folder == str(tmp_path), "the nearest folder that exists stands for it"
    assert storage.check_page_cache(facts) is None
    assert check_ranks(facts) is None


def test_a_damaged_dataset_fails_and_a_good_one_passes(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    workload = small(tmp_path)
    facts = Facts(workload)
    check = check_dataset(facts)
    assert isinstance(facts.dataset, Dataset)
    assert (check.level, "24 training files" in check.observed) == ("ok", True)
    fit = check_ranks(facts)
    assert fit is not None
    assert (fit.level, "6 steps per epoch" in fit.observed) == ("ok", True)
    with pytest.raises(UserError, match="step"):
        check_ranks(Facts(replace(workload, ranks=7)))
    next((tmp_path / "train").glob("*")).unlink()
    damaged = Facts(workload)
    assert damaged.usable_dataset is None
    with pytest.raises(DatasetError):
        check_dataset(damaged)


def test_a_dataset_smaller_than_memory_is_warned_of_unless_the_cache_is_passed_by_or_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset(tmp_path)

    def check(*overrides: str) -> Check | None:
        return storage.check_page_cache(Facts(small(tmp_path, *overrides)))

    checks = check(), check("reader.odirect=true"), check("reader.evict_page_cache=epochs")
    levels = [found.level for found in checks if found is not None]
    assert levels == ["warn", "ok", "ok"]
    advice = [present(check(f"reader.engine={engine}")).advice for engine in ("fast", "library")]
    assert ["odirect" in each for each in advice] == [True, False], "the library reads through the page cache"
    for times, level in ((1 << 20, "ok"), (2, "warn")):
        facts = Facts(small(tmp_path))
        assert facts.usable_dataset is not None
        memory = SimpleNamespace(total_bytes=facts.usable_dataset.total_bytes // times + 1)
        monkeypatch.setattr(storage, "host_memory", lambda memory=memory: memory)
        found = storage.check_page_cache(facts)
        assert found is not None
        assert (found.level, "part of the reads" in found.observed) == (level, level == "warn")


@pytest.mark.parametrize(("file_system", "level"), [("tmpfs", "warn"), ("xfs", "ok")])
def test_a_file_system_in_memory_is_no_drive(file_system: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "describe_storage", lambda *_: StorageFacts(folder="/d", file_system=file_system))
    assert storage.check_file_system(Facts(Workload())).level == level


def test_no_o_direct_fails_only_who_asks_for_it(tmp_path: Path) -> None:
    folder, absent = str(tmp_path), str(tmp_path / "absent.npz")
    assert storage.judge_direct_reads(folder, absent, direct=False).level == "warn"
    assert storage.judge_direct_reads(folder, absent, direct=True).level == "fail"
    storage.judge_direct_reads(folder, None, direct=True)
    assert not list(tmp_path.iterdir()), "the file of the trial is gone"


def device(**changes: Any) -> DeviceFacts:
    facts = DeviceFacts(
        probe="block", name="nvme0n1p2", kind="partition", below=("nvme0n1",), counted=True, read_ahead_bytes=4 << 20
    )
    return replace(facts, **changes)


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
    overrides: list[str], read_ahead_kib: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = device(read_ahead_bytes=read_ahead_kib << 10)
    multipath = replace(drive, name="nvme0n1", kind="disk", below=("nvme0c0n1",), counted=False)
    for devices in ([drive], [multipath, device(name="nvme0c0n1", kind="nvme path", read_ahead_bytes=0)]):
        monkeypatch.setattr(storage, "device_stack", lambda *_, devices=devices: (devices, ""))
        check = storage.check_read_ahead(Facts(load(overrides)))
        assert check is not None
        assert check.level == level
        assert not check.advice or "/sys/block/nvme0n1/queue/" in check.advice, "a partition's settings are its disk's"
    monkeypatch.setattr(storage, "describe_storage", lambda *_: StorageFacts(folder="data", file_system="btrfs"))
    assert storage.check_read_ahead(Facts(load(overrides))) is None, "btrfs has a read-ahead of its own"
    monkeypatch.setattr(storage, "device_stack", lambda *_: ([], "memory"))
    assert storage.check_read_ahead(Facts(Workload())) is None


def test_a_storage_without_local_folders_has_no_device_nor_page_cache_to_look_at(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    bucket = "storage.storage_type=tests.doctor.bucket"
    facts = Facts(small(tmp_path, bucket))
    assert facts.usable_dataset is not None
    assert "on tests.doctor.bucket (unknown device)" in storage.check_file_system(facts).observed
    for check in (storage.check_read_ahead, storage.check_direct_reads, storage.check_page_cache):
        assert check(facts) is None
    with pytest.raises(UserError, match="no page cache to read past"):
        storage.check_direct_reads(Facts(small(tmp_path, bucket, "reader.odirect=true")))
