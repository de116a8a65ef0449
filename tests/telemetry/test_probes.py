"""Probes on fake machines made of files: devices behind a folder, and what this host may lack."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from datagen.registry import find
from datagen.storage._request_counts import RequestCounts, read_counts, waits_ms
from dlemu.machine.environment import describe_folder
from dlemu.telemetry.probe_base import AbsentError, ProbeBase
from tests.telemetry.machine import Machine, over

SECOND_NS = 1_000_000_000


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def probe_of(name: str, machine: Machine, *folders: Path) -> ProbeBase:
    probe: ProbeBase = find("dlemu.telemetry", name, "Probe")(machine.scope(*folders))
    return probe


def read(probe: ProbeBase, now_ns: int) -> dict[tuple[str, str], float]:
    return {(reading.source, reading.metric): reading.value for reading in probe.read(now_ns)}


def counted(machine: Machine, *folders: Path) -> set[str]:
    return {device.name for device in probe_of("block", machine, *folders).devices if device.counted}


def test_a_partition_is_counted_and_its_disk_only_shown(machine: Machine, tmp_path: Path) -> None:
    machine.disk("nvme0n1p2", "259:2", on=machine.disk("nvme0n1", "259:0"))
    data = machine.mount(tmp_path / "data", "ext4", "/dev/nvme0n1p2", "259:2")
    probe = probe_of("block", machine, data / "unet3d")
    devices = {device.name: (device.below, device.counted) for device in probe.devices}
    assert devices == {"nvme0n1p2": (("nvme0n1",), True), "nvme0n1": ((), False)}
    assert probe.notes == ()


def test_all_devices_of_a_stack_are_listed_and_only_the_top_one_is_counted(machine: Machine, tmp_path: Path) -> None:
    for name in ("sda", "sdb", "md0", "dm-1"):
        machine.disk(name, {"dm-1": "253:1"}.get(name, ""))
    machine.put("sys/devices/md0/md/level", "raid0")
    machine.put("sys/devices/dm-1/dm/name", "vg-data")
    over(machine, "dm-1", "md0")
    over(machine, "md0", "sda", "sdb")
    data = machine.mount(tmp_path / "data", "xfs", "/dev/mapper/vg-data", "253:1")
    devices = probe_of("block", machine, data).devices
    assert {device.name: device.kind for device in devices} == {"dm-1": "dm", "md0": "md", "sda": "disk", "sdb": "disk"}
    assert counted(machine, data) == {"dm-1"}


def test_the_innermost_and_last_mount_wins(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.disk("sda", "8:0")
    machine.disk("sdb", "8:16")
    machine.mount(tmp_path, "ext4", "/dev/sda", "8:0")
    machine.mount(tmp_path / "data", "tmpfs", "tmpfs")
    data = machine.mount(tmp_path / "data", "ext4", "/dev/sdb", "8:16")
    machine.mount(tmp_path / "dat", "ext4", "/dev/sda", "8:0")
    assert counted(machine, data / "train") == {"sdb"}
    machine.put("proc/self/mounts", f"/dev/sda / ext4 rw 0 0\nauto {data} autofs rw 0 0\n/dev/sdb {data} ext4 rw 0 0\n")
    machine.put("proc/filesystems", "")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(machine.proc))
    assert describe_folder(str(data)).device == "/dev/sdb"


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


@pytest.mark.parametrize("top", ["nvme1n1", "nvme1n1p1"])
@pytest.mark.parametrize(("reads", "expected"), [(0, {"nvme1c0n1", "nvme1c1n1"}), (7, {"nvme1n1"})])
def test_the_paths_of_an_nvme_head_without_counts_are_counted_instead(
    reads: int, expected: set[str], top: str, machine: Machine, tmp_path: Path
) -> None:
    head = machine.disk("nvme1n1", "259:1", reads=reads)
    machine.disk("nvme1n1p1", "259:2", on=head)
    for path in ("nvme1c0n1", "nvme1c1n1", "nvme2c0n1"):
        machine.disk(path, reads=5)
    data = machine.mount(tmp_path / "data", "ext4", f"/dev/{top}", "259:1" if top == "nvme1n1" else "259:2")
    devices = probe_of("block", machine, data).devices
    assert {device.name for device in devices} == {top, "nvme1n1", "nvme1c0n1", "nvme1c1n1"}
    assert counted(machine, data) == expected


def test_a_folder_without_a_device_has_a_note(machine: Machine, tmp_path: Path) -> None:
    for file_system, source, word in (
        ("tmpfs", "tmpfs", "memory"),
        ("nfs4", "server:/export", "nfs4 (server:/export)"),
        ("overlay", "overlay", "overlay"),
    ):
        data = machine.mount(tmp_path / file_system, file_system, source)
        with pytest.raises(AbsentError) as caught:
            probe_of("block", machine, data)
        assert all(part in str(caught.value) for part in (word, str(data)))


def test_rates_follow_from_the_growth_of_the_counters(machine: Machine, tmp_path: Path) -> None:
    machine.disk("sda", "8:0", reads=100, sectors=1000, ms=50, busy=10, weighted=70)
    data = machine.mount(tmp_path / "data", "ext4", "/dev/sda", "8:0")
    probe = probe_of("block", machine, data)
    assert read(probe, SECOND_NS) == {("sda", "in_flight"): 3}
    machine.counts("sda", reads=300, sectors=1000 + 200 * 512, ms=50 + 800, busy=10 + 1000, weighted=70 + 800)
    assert {metric: value for (_, metric), value in read(probe, 3 * SECOND_NS).items()} == {
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
    probe = probe_of("block", machine, data)
    read(probe, SECOND_NS)
    machine.counts("sda", reads=40)
    assert [*read(probe, 2 * SECOND_NS)] == [("sda", "in_flight")]
    machine.counts("sda", reads=50)
    assert read(probe, 3 * SECOND_NS)["sda", "reads_per_second"] == 10


def test_a_device_that_counts_no_requests_has_a_note(machine: Machine, tmp_path: Path) -> None:
    machine.disk("sda1", "8:1", on=machine.disk("sda", "8:0"))
    machine.put("sys/devices/sda/queue/iostats", "0\n")
    data = machine.mount(tmp_path / "data", "ext4", "/dev/sda1", "8:1")
    (note,) = probe_of("block", machine, data).notes
    assert "/sys/block/sda/queue/iostats" in note


MOUNTSTATS = """device /dev/vda mounted on / with fstype ext4
device server:/export mounted on {point} with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tage:\t100
\tbytes:\t1000 2000 0 0 {read} {written} 7 8
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: {reads} 0 0 0 0 5 {ms} {ms} 0
\t       WRITE: 5 0 0 0 0 5 5 5 0
"""


def test_bytes_from_an_nfs_server_are_counted(machine: Machine, tmp_path: Path) -> None:
    data = machine.mount(tmp_path / "my data", "nfs4", "server:/export")
    point = f"{tmp_path}/my\\040data"
    machine.put("proc/self/mountstats", MOUNTSTATS.format(point=point, read=0, written=0, reads=0, ms=0))
    probe = probe_of("filesystem", machine, data)
    assert [device.counted for device in probe.devices] == [True]
    read(probe, SECOND_NS)
    machine.put("proc/self/mountstats", MOUNTSTATS.format(point=point, read=4_000_000, written=0, reads=8, ms=1000))
    assert read(probe, 3 * SECOND_NS) == {
        (str(data), "read_mb_per_second"): pytest.approx(2),
        (str(data), "write_mb_per_second"): 0,
        (str(data), "reads_per_second"): pytest.approx(4),
        (str(data), "mean_queue_depth"): pytest.approx(0.5),
        (str(data), "mean_read_latency_ms"): pytest.approx(125),
    }


@pytest.mark.parametrize("name", ["filesystem", "power", "temperature", "process"])
def test_a_probe_without_anything_to_read_is_absent(name: str, machine: Machine, tmp_path: Path) -> None:
    data = machine.mount(tmp_path / "data", "ext4", "/dev/sda", "8:0")
    with pytest.raises(AbsentError):
        probe_of(name, machine, data)


def test_power_is_the_growth_of_the_energy_counters(machine: Machine) -> None:
    for folder, name in (("intel-rapl:0", "package-0"), ("intel-rapl:0:1", "dram")):
        machine.put(f"sys/class/powercap/{folder}/name", name)
        machine.put(f"sys/class/powercap/{folder}/energy_uj", "900000000\n")
    probe = probe_of("power", machine)
    assert read(probe, SECOND_NS) == {}
    machine.put("sys/class/powercap/intel-rapl:0/energy_uj", "20000000\n")  # it wrapped
    machine.put("sys/class/powercap/intel-rapl:0:1/energy_uj", "910000000\n")
    assert read(probe, 3 * SECOND_NS) == {("package-0/dram", "watts"): pytest.approx(5)}
    machine.put("sys/class/powercap/intel-rapl:0/energy_uj", "140000000\n")
    assert read(probe, 5 * SECOND_NS)["package-0", "watts"] == pytest.approx(60)


def test_each_power_sensor_is_read_once(machine: Machine) -> None:
    machine.put("sys/class/hwmon/hwmon2/name", "power_meter\n")
    machine.put("sys/class/hwmon/hwmon2/power1_average", "250000000\n")
    machine.put("sys/class/hwmon/hwmon2/power1_average_interval", "1000\n")
    machine.put("sys/class/hwmon/hwmon3/name", "ina\n")
    machine.put("sys/class/hwmon/hwmon3/power1_input", "1500000\n")
    machine.put("sys/class/hwmon/hwmon3/power1_average", "1400000\n")
    machine.put("sys/class/hwmon/hwmon3/power1_label", "12V\n")
    values = read(probe_of("power", machine), SECOND_NS)
    assert values == {("hwmon2 power_meter power1", "watts"): 250, ("hwmon3 ina 12V", "watts"): 1.5}


def test_interfaces_have_rates_and_the_speed_of_their_link(machine: Machine) -> None:
    machine.put("proc/self/net/dev", "head\nhead\n  eth0: 1000 0 0 0 0 0 0 0 500 0 0 0 0 0 0 0\n")
    machine.put("sys/class/net/eth0/speed", "10000\n")
    probe = probe_of("network", machine)
    read(probe, SECOND_NS)
    machine.put("proc/self/net/dev", "head\nhead\n  eth0: 2001000 0 0 0 0 0 0 0 500 0 0 0 0 0 0 0\n")
    values = read(probe, 2 * SECOND_NS)
    assert values["eth0", "received_mb_per_second"] == pytest.approx(2)
    assert values["eth0", "sent_mb_per_second"] == 0
    assert values["eth0", "link_mb_per_second"] == 1250


def test_pressure_is_a_percentage_of_elapsed_time(machine: Machine) -> None:
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 total={}\n"
    for name in ("cpu", "io", "memory"):
        machine.put(f"proc/pressure/{name}", text.format(100, 0))
    probe = probe_of("pressure", machine)
    read(probe, SECOND_NS)
    machine.put("proc/pressure/io", text.format(500100, 250000))
    assert read(probe, 3 * SECOND_NS)["", "io_some_percent"] == pytest.approx(25)
    machine.put("proc/pressure/io", "some total=1000100\nfull total=500000\n")
    assert read(probe, 4 * SECOND_NS)["", "io_full_percent"] == pytest.approx(25)


def test_throttling_is_a_percentage_of_the_cpu_limits_periods(machine: Machine, tmp_path: Path) -> None:
    machine.put("proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\n")
    group = tmp_path / "group"
    group.mkdir()
    (group / "cpu.stat").write_text("nr_periods 10\nnr_throttled 5\nthrottled_time 9\n")
    probe = find("dlemu.telemetry", "cpu", "Probe")(replace(machine.scope(), cpu_groups=(str(group),)))
    read(probe, SECOND_NS)
    (group / "cpu.stat").write_text("usage_usec 7\nnr_periods 20\nnr_throttled 13\nthrottled_usec 9\n")
    assert read(probe, 2 * SECOND_NS)["", "throttled_percent"] == pytest.approx(80)
    assert read(probe, 3 * SECOND_NS)["", "throttled_percent"] == 0


def test_drives_report_their_temperature_and_threshold(machine: Machine) -> None:
    for place, name, drive in ((1, "nvme", "nvme/nvme0"), (2, "drivetemp", "scsi/0:0:0:0"), (3, "k10temp", "pci0")):
        machine.put(f"sys/class/hwmon/hwmon{place}/name", f"{name}\n")
        machine.put(f"sys/class/hwmon/hwmon{place}/temp1_input", f"{40 + place}500\n")
        machine.put(f"sys/devices/{drive}/model", "fast\n")
        (machine.sys / f"class/hwmon/hwmon{place}/device").symlink_to(machine.sys / "devices" / drive)
    machine.put("sys/class/hwmon/hwmon1/temp1_max", "82850\n")
    machine.put("sys/devices/scsi/0:0:0:0/block/sda/size", "9\n")
    assert read(probe_of("temperature", machine), SECOND_NS) == {
        ("nvme0", "celsius"): 41.5,
        ("nvme0", "limit_celsius"): 82.85,
        ("sda", "celsius"): 42.5,
    }


def test_requests_are_counted_in_files_that_are_whole(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    counts = RequestCounts.in_folder(str(folder))
    counts.add("get", 7)
    counts.add("retried", 3)
    (folder / "elsewhere-1.requests").write_bytes(b"short")
    assert read_counts(str(folder)).requests == 7
    assert read_counts(str(tmp_path / "none")).requests == 0


def test_close_percentiles_are_distinguished() -> None:
    counts = RequestCounts()
    for number in range(100):
        counts.add_latencies(60_000_000 + number * 100_000, 70_000_000)
    waits, same = waits_ms(counts.first_byte), waits_ms(counts.last_byte)
    assert waits is not None
    assert same is not None
    assert waits.p50 == pytest.approx(65, rel=0.022)
    assert waits.p90 == pytest.approx(69, rel=0.022)
    assert waits.p50 < waits.p90
    assert same.p50 == same.p99 == pytest.approx(70, rel=0.022)
