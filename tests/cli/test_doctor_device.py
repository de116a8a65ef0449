"""`dlemu doctor`: the device behind the dataset, the GPUs, the cores left, and the ceiling of a workload."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.cli import checks_ceiling, checks_dataset, checks_device, checks_host
from dlemu.cli.checks_device import BlockDevice
from dlemu.config import load
from tests.cli.test_doctor import small
from tests.datasets import make_dataset


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
    device = checks_device.block_device(str(tmp_path), "/dev/no such", sys=str(tmp_path / "sys"))
    assert device == BlockDevice(name="nvme0n1", read_ahead_kib=128, scheduler="bfq", counts=False)
    assert checks_device.block_device(str(tmp_path), "server:/export", sys=str(tmp_path / "nothing")) is None


def device(**changes: Any) -> BlockDevice:
    facts: dict[str, Any] = {"name": "nvme0n1", "read_ahead_kib": 4096, "scheduler": "none", "counts": True}
    return BlockDevice(**(facts | changes))


def test_little_read_ahead_matters_to_large_samples_through_the_cache() -> None:
    unet3d, bert = load(["workload=unet3d"]), load(["workload=bert"])
    past = load(["workload=unet3d", "reader.odirect=true"])
    assert checks_device.check_read_ahead(device(read_ahead_kib=128), unet3d).level == "warn"
    assert checks_device.check_read_ahead(device(), unet3d).level == "ok"
    assert checks_device.check_read_ahead(device(read_ahead_kib=128), bert).level == "ok"
    assert checks_device.check_read_ahead(device(read_ahead_kib=128), past).level == "ok"


def test_schedulers_that_hold_requests_back_are_warned_of() -> None:
    assert checks_device.check_scheduler(device()).level == "ok"
    assert checks_device.check_scheduler(device(scheduler="bfq")).level == "warn"
    assert "iostats" in checks_device.check_scheduler(device(counts=False)).advice


def test_busy_cores_are_warned_of() -> None:
    check = checks_host.check_free_cores(60.0, 8)
    assert (check.level, check.seen[:8]) == ("warn", "4.8 of 8")
    assert checks_host.check_free_cores(5.0, 8).level == "ok"


def test_a_gpu_is_needed_for_pinned_memory_alone(tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA H100\nIRQ: 12\n")
    assert checks_host.check_gpus(checks_host.gpus(str(tmp_path)), True).seen == "1 x NVIDIA H100"
    assert checks_host.gpus(str(tmp_path / "none")) == []
    assert checks_host.check_gpus([], True).level == "fail"
    assert checks_host.check_gpus([], False).level == "ok"


def test_more_workers_than_files_may_be_open_fail() -> None:
    assert checks_host.check_open_files(256, 2048, wanted=4000).level == "fail"
    assert checks_host.check_open_files(256, 2048, wanted=1500).level == "ok"


def test_an_evicted_dataset_may_be_small(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    found, _ = checks_dataset.find_dataset(small(tmp_path))
    assert found is not None
    assert checks_dataset.check_cache(found, odirect=False, evicted=True).level == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["threads", "none"])
def test_the_ceiling_is_measured_without_a_dataset(loader: str, tmp_path: Path) -> None:
    words = ("ranks=2", "train.computation_time=0.01", f"reader.data_loader={loader}", "metric.ceiling_seconds=0.1")
    (check,) = checks_ceiling.checks(small(tmp_path / "none", *words), None)
    assert check.level in ("ok", "fail"), "a busy machine may be below the threshold"
    assert "% AU for 2 x accelerator" in check.seen
    assert "MB/s" in check.seen


def test_a_ceiling_below_the_threshold_fails() -> None:
    workload = load(["workload=unet3d", "accelerator=h100", "ranks=18"])
    check = checks_ceiling.judge(workload, 75.0)
    assert (check.level, check.wanted) == ("fail", "90 % or more")
    assert "18 x h100" in check.seen
    assert checks_ceiling.judge(workload, 99.0).level == "ok"


def test_ranks_that_can_not_run_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("rank 3 of 4 could not be started")

    monkeypatch.setattr(checks_ceiling, "run_ranks", refuse)
    words = ("train.computation_time=0.01", "reader.data_loader=none")
    (check,) = checks_ceiling.checks(small(tmp_path / "none", *words), None)
    assert (check.level, check.seen) == ("fail", "rank 3 of 4 could not be started")


def test_what_computes_nothing_has_no_ceiling(tmp_path: Path) -> None:
    (check,) = checks_ceiling.checks(small(tmp_path, "train.computation_time=0"), None)
    assert check.seen.startswith("not measured")
