"""Probes for what this machine may lack (network file systems, InfiniBand, power meters, object stores): fake files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datagen.registry import find
from datagen.storage._request_counts import RequestCounts, read_counts, waits_ms
from dlemu.telemetry.probe_base import AbsentError, ProbeBase
from tests.telemetry.machine import Machine

SECOND_NS = 1_000_000_000
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


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def probe_of(name: str, machine: Machine, *folders: Path) -> ProbeBase:
    probe: ProbeBase = find("dlemu.telemetry", name, "Probe")(machine.scope(*folders))
    return probe


def read(probe: ProbeBase, now_ns: int) -> dict[tuple[str, str], float]:
    return {(reading.source, reading.metric): reading.value for reading in probe.read(now_ns)}


def test_bytes_from_an_nfs_server_are_counted(machine: Machine, tmp_path: Path) -> None:
    data = machine.mount(tmp_path / "data", "nfs4", "server:/export")
    machine.put("proc/self/mountstats", MOUNTSTATS.format(point=data, read=0, written=0, reads=0, ms=0))
    probe = probe_of("filesystem", machine, data)
    assert [device.counted for device in probe.devices] == [True]
    read(probe, SECOND_NS)
    machine.put("proc/self/mountstats", MOUNTSTATS.format(point=data, read=4_000_000, written=0, reads=8, ms=1000))
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
    for name in ("cpu", "io", "memory"):
        machine.put(
            f"proc/pressure/{name}", "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\nfull avg10=0.00 total=0\n"
        )
    probe = probe_of("pressure", machine)
    read(probe, SECOND_NS)
    machine.put(
        "proc/pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=500100\nfull avg10=0.00 total=250000\n"
    )
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
    counts = RequestCounts.kept_in(str(folder))
    counts.add("get", 7)
    counts.add("retried", 3)
    (folder / "elsewhere-1.requests").write_bytes(b"short")
    assert read_counts(str(folder)).requests == 7
    assert read_counts(str(tmp_path / "none")).requests == 0


def test_close_percentiles_are_distinguished() -> None:
    counts = RequestCounts()
    for number in range(100):
        counts.answered(60_000_000 + number * 100_000, 70_000_000)
    waits, same = waits_ms(counts.first_byte), waits_ms(counts.last_byte)
    assert waits is not None
    assert same is not None
    assert waits.p50 == pytest.approx(65, rel=0.022)
    assert waits.p90 == pytest.approx(69, rel=0.022)
    assert waits.p50 < waits.p90
    assert same.p50 == same.p99 == pytest.approx(70, rel=0.022)
