"""What summary.json and telemetry.parquet say of what the recorders read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dlemu.emulator.run import RunLog
from dlemu.report.folder import write_telemetry
from dlemu.report.summary import build_summary
from tests.runs import make_job, make_log, with_telemetry


def test_device_bytes_stand_beside_the_applications() -> None:
    job = make_job()
    metrics = build_summary(job, with_telemetry(make_log(job), device_share=0.25))["metrics"]
    assert metrics["device_bytes_percent_of_app"]["mean"] == pytest.approx(25, rel=0.05)
    assert metrics["device_mb_per_second"]["mean"] == pytest.approx(metrics["app_mb_per_second"]["mean"] / 4, rel=0.05)
    assert len(metrics["device_mb_per_second"]["per_epoch"]) == 2


@pytest.mark.parametrize("skew_ns", [0, 3_000_000_000])
def test_two_hosts_add_up_but_two_views_of_one_machine_do_not(skew_ns: int) -> None:
    job = make_job()
    log = with_telemetry(make_log(job, rank_nodes=(0, 1)))
    log = replace(log, rows=make_log(job, rank_nodes=(0, 1), skew_ns=skew_ns).rows)
    shifted = tuple(replace(host, time_ns=host.time_ns + skew_ns * host.node) for host in log.telemetry)
    metrics = build_summary(job, replace(log, telemetry=shifted))["metrics"]
    assert metrics["device_bytes_percent_of_app"]["mean"] == pytest.approx(100, rel=0.05)
    twins = tuple(replace(host, boot_id="one") for host in shifted)
    metrics = build_summary(job, replace(log, telemetry=twins))["metrics"]
    assert metrics["device_bytes_percent_of_app"]["mean"] == pytest.approx(50, rel=0.05)


def test_power_is_told_with_what_was_read_for_it() -> None:
    job = make_job()
    told = build_summary(job, with_telemetry(make_log(job)))
    (meter,) = told["telemetry"]["power"]
    assert meter["mean_watts"] == pytest.approx(40)
    gb_per_second = told["metrics"]["app_mb_per_second"]["mean"] / 1e3
    assert meter["gb_per_second_per_watt"] == pytest.approx(gb_per_second / 40)


def test_without_telemetry_there_is_none() -> None:
    job = make_job()
    told = build_summary(job, make_log(job))
    assert told["telemetry"] is None
    assert told["metrics"]["device_mb_per_second"]["mean"] is None


def test_a_note_of_one_host_of_several_names_it() -> None:
    job = make_job()
    log = with_telemetry(make_log(job, rank_nodes=(0, 1)))
    first, second = log.telemetry
    notes = replace(second, notes=("a note", "only here"))
    told = build_summary(job, RunLog(log.rows, log.journal, (first, notes)))["telemetry"]
    assert told["notes"] == ["a note", "node1: only here"]


def test_the_table_has_a_row_a_reading(tmp_path: Path) -> None:
    log = with_telemetry(make_log(make_job(), rank_nodes=(0, 1)))
    write_telemetry(str(tmp_path), log.telemetry)
    table = pq.read_table(tmp_path / "telemetry.parquet")
    assert table.column_names == ["time_ns", "host", "probe", "source", "metric", "value"]
    rows = table.to_pylist()
    assert len(rows) == sum(len(host.value) for host in log.telemetry)
    assert {row["host"] for row in rows} == {"node0", "node1"}
    assert {row["value"] for row in rows if row["metric"] == "watts"} == {40.0}
    assert {(row["probe"], row["source"]) for row in rows} == {("block", "nvme0n1"), ("power", "package-0")}
