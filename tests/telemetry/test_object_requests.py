"""Request counters of several processes are read as rates, and link speeds are read beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from datagen.registry import find
from datagen.storage._request_counts import RequestCounts, read_counts, waits_ms
from dlemu.telemetry.probe_base import Scope

SECOND_NS = 1_000_000_000


def test_requests_of_several_processes_become_rates(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    one = RequestCounts.kept_in(str(folder))
    probe = find("dlemu.telemetry", "object_requests", "Probe")(Scope(request_folder=str(folder)))
    assert {reading.metric for reading in probe.read(0)} == {"requests_in_flight", "connections_in_flight"}
    for _ in range(10):
        one.add("get")
        one.add("received_bytes", 1_000_000)
        one.answered(5_000_000, 20_000_000)
    one.add("retried", 3)
    one.add("in_flight", 2)
    (folder / "elsewhere-1.requests").write_bytes(b"short")
    found = {reading.metric: reading.value for reading in probe.read(2 * SECOND_NS)}
    assert (found["requests_per_second"], found["received_mb_per_second"], found["retried_per_second"]) == (5, 5, 1.5)
    assert found["requests_in_flight"] == 2
    assert found["first_byte_p50_ms"] == pytest.approx(5, rel=0.1)
    assert found["last_byte_p99_ms"] == pytest.approx(20, rel=0.1)
    assert "first_byte_p50_ms" not in {reading.metric for reading in probe.read(3 * SECOND_NS)}
    assert read_counts(str(folder)).requests == 10
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
