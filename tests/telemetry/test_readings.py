"""A run's telemetry as tables: reading them back gives the same telemetry."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from dlemu.telemetry import DeviceFacts, HostTelemetry, RecorderHead, Series, Telemetry, from_tables, to_table


def host(node: int, name: str, readings: int) -> HostTelemetry:
    series = (Series("block", "sdb", "mb"), Series("block", "sda", "mb"), Series("cpu", "", "mb"))
    return HostTelemetry(
        host=name,
        node=node,
        boot_id=f"boot {node}",
        interval_seconds=0.5,
        probes=("block", "cpu"),
        devices=(DeviceFacts(probe="block", name="sdb", kind="disk", below=("sda",), counted=True),),
        notes=("a note",),
        cpu_seconds=0.1,
        series=series[: min(readings, 3)],
        which=(np.arange(readings) % 3).astype(np.int32),
        time_ns=np.arange(readings) + 1_000 * node,
        value=np.linspace(0, 1, readings) * (node + 1),
    )


def assert_equal(found: Telemetry, expected: Telemetry) -> None:
    assert [one.head for one in found] == [one.head for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.series == other.series
        assert one.which.dtype == np.int32
        for name in ("which", "time_ns", "value"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c"), ("same", "same")])
@pytest.mark.parametrize("readings", [0, 2, 100])
def test_a_results_folder_preserves_telemetry(names: tuple[str, ...], readings: int, tmp_path: Path) -> None:
    telemetry = tuple(host(node, name, readings + node) for node, name in enumerate(names))
    pq.write_table(to_table(telemetry), tmp_path / "telemetry.parquet", compression="zstd")
    heads = msgspec.json.decode(msgspec.json.encode([one.head for one in telemetry]), type=tuple[RecorderHead, ...])
    assert_equal(from_tables(heads, pq.read_table(tmp_path / "telemetry.parquet")), telemetry)


def test_without_telemetry_the_table_is_empty() -> None:
    table = to_table(())
    assert table.column_names == ["time_ns", "host", "probe", "source", "metric", "value"]
    assert from_tables((), table) == ()
