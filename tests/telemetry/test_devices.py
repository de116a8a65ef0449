"""The devices behind a folder, on fake machines made of files, so the tests do not depend on this host's hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlemu.telemetry.block import Probe
from dlemu.telemetry.probe_base import AbsentError, DeviceFacts, Reading
from tests.telemetry.machine import Machine, over

SECOND_NS = 1_000_000_000


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def described(machine: Machine, *folders: Path) -> tuple[dict[str, DeviceFacts], tuple[str, ...]]:
    probe = Probe(machine.scope(*folders))
    return {device.name: device for device in probe.devices}, probe.notes


def counted(machine: Machine, *folders: Path) -> set[str]:
    devices, _ = described(machine, *folders)
    return {name for name, device in devices.items() if device.counted}


def test_a_partition_is_counted_and_its_disk_only_shown(machine: Machine, tmp_path: Path) -> None:
    disk = machine.disk("nvme0n1", "259:0")
    machine.disk("nvme0n1p2", "259:2", on=disk)
    data = machine.mount(tmp_path / "data", "ext4", "/dev/nvme0n1p2", "259:2")
    devices, notes = described(machine, data / "unet3d")
    assert devices["nvme0n1p2"].below == ("nvme0n1",)
    assert devices["nvme0n1p2"].scheduler == "none"
    assert counted(machine, data) == {"nvme0n1p2"}
    assert set(devices) == {"nvme0n1p2", "nvme0n1"}
    assert notes == ()


def test_all_devices_of_a_stack_are_listed_and_only_the_top_one_is_counted(machine: Machine, tmp_path: Path) -> None:
    for name in ("sda", "sdb", "md0", "dm-1"):
        machine.disk(name, {"dm-1": "253:1"}.get(name, ""))
    machine.put("sys/devices/md0/md/level", "raid0")
    machine.put("sys/devices/dm-1/dm/name", "vg-data")
    over(machine, "dm-1", "md0")
    over(machine, "md0", "sda", "sdb")
    data = machine.mount(tmp_path / "data", "xfs", "/dev/mapper/vg-data", "253:1")
    devices, _ = described(machine, data)
    assert {name: device.kind for name, device in devices.items()} == {
        "dm-1": "dm",
        "md0": "md",
        "sda": "disk",
        "sdb": "disk",
    }
    assert counted(machine, data) == {"dm-1"}


def test_the_innermost_and_last_mount_wins(machine: Machine, tmp_path: Path) -> None:
    machine.disk("sda", "8:0")
    machine.disk("sdb", "8:16")
    machine.mount(tmp_path, "ext4", "/dev/sda", "8:0")
    machine.mount(tmp_path / "data", "tmpfs", "tmpfs")
    data = machine.mount(tmp_path / "data", "ext4", "/dev/sdb", "8:16")
    machine.mount(tmp_path / "dat", "ext4", "/dev/sda", "8:0")
    assert counted(machine, data / "train") == {"sdb"}


def test_folders_on_several_devices_are_all_counted(machine: Machine, tmp_path: Path) -> None:
    folders = []
    for number, name in enumerate(("sda", "sdb", "sdc")):
        machine.disk(name, f"8:{16 * number}")
        folders.append(machine.mount(tmp_path / name, "ext4", f"/dev/{name}", f"8:{16 * number}"))
    assert counted(machine, *folders[:2]) == {"sda", "sdb"}


def test_btrfs_is_found_by_its_members(machine: Machine, tmp_path: Path) -> None:
    for name in ("sda", "sdb", "sdc"):
        machine.disk(name)
    for name in ("sda", "sdb"):
        machine.put(f"sys/fs/btrfs/1234/devices/{name}", "")
    machine.put("sys/fs/btrfs/5678/devices/sdc", "")
    data = machine.mount(tmp_path / "data", "btrfs", "/dev/sdb", "0:44")
    assert counted(machine, data) == {"sda", "sdb"}


@pytest.mark.parametrize(("reads", "expected"), [(0, {"nvme1c0n1", "nvme1c1n1"}), (7, {"nvme1n1"})])
def test_the_paths_of_an_nvme_head_without_counts_are_counted_instead(
    reads: int, expected: set[str], machine: Machine, tmp_path: Path
) -> None:
    machine.disk("nvme1n1", "259:1", reads=reads)
    for path in ("nvme1c0n1", "nvme1c1n1", "nvme2c0n1"):
        machine.disk(path, reads=5)
    data = machine.mount(tmp_path / "data", "ext4", "/dev/nvme1n1", "259:1")
    devices, _ = described(machine, data)
    assert set(devices) == {"nvme1n1", "nvme1c0n1", "nvme1c1n1"}
    assert counted(machine, data) == expected


@pytest.mark.parametrize(
    ("file_system", "source", "word"),
    [
        ("tmpfs", "tmpfs", "memory"),
        ("nfs4", "server:/export", "nfs4 (server:/export)"),
        ("overlay", "overlay", "overlay"),
    ],
)
def test_a_folder_without_a_device_has_a_note(
    file_system: str, source: str, word: str, machine: Machine, tmp_path: Path
) -> None:
    data = machine.mount(tmp_path / "data", file_system, source)
    with pytest.raises(AbsentError) as caught:
        Probe(machine.scope(data))
    assert word in str(caught.value)
    assert str(data) in str(caught.value)


def test_rates_follow_from_the_growth_of_the_counters(machine: Machine, tmp_path: Path) -> None:
    machine.disk("sda", "8:0", reads=100, sectors=1000, ms=50, busy=10, weighted=70)
    data = machine.mount(tmp_path / "data", "ext4", "/dev/sda", "8:0")
    probe = Probe(machine.scope(data))
    assert list(probe.read(SECOND_NS)) == [Reading("sda", "in_flight", 3)]
    machine.counts("sda", reads=300, sectors=1000 + 200 * 512, ms=50 + 800, busy=10 + 1000, weighted=70 + 800)
    values = {reading.metric: reading.value for reading in probe.read(3 * SECOND_NS)}
    assert values == {
        "in_flight": 3,
        "reads_per_second": 100,
        "read_mb_per_second": pytest.approx(200 * 512 * 512 / 2e6),
        "writes_per_second": 0,
        "write_mb_per_second": 0,
        "mean_queue_depth": pytest.approx(0.4),
        "busy_percent": pytest.approx(50),
        "mean_read_latency_ms": pytest.approx(4),
        "mean_read_kib": pytest.approx(256),
    }


def test_counters_that_restart_void_one_interval(machine: Machine, tmp_path: Path) -> None:
    machine.disk("sda", "8:0", reads=100)
    data = machine.mount(tmp_path / "data", "ext4", "/dev/sda", "8:0")
    probe = Probe(machine.scope(data))
    list(probe.read(SECOND_NS))
    machine.counts("sda", reads=40)
    assert [reading.metric for reading in probe.read(2 * SECOND_NS)] == ["in_flight"]
    machine.counts("sda", reads=50)
    assert Reading("sda", "reads_per_second", 10) in list(probe.read(3 * SECOND_NS))


def test_a_device_that_counts_no_requests_has_a_note(machine: Machine, tmp_path: Path) -> None:
    machine.disk("sda", "8:0")
    machine.put("sys/devices/sda/queue/iostats", "0\n")
    data = machine.mount(tmp_path / "data", "ext4", "/dev/sda", "8:0")
    _, notes = described(machine, data)
    assert "/sys/block/sda/queue/iostats" in notes[0]
