"""Figures of runs on several hosts: each host is told from the others, and no device is counted twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlemu.jobs.training.result import Run
from tests.report.folders import hand_made_run

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
from tests.report.test_figures import column, draw, rows_of

SKEW_NS = 3_000_000_000


@pytest.fixture(scope="module")
def run() -> Run:
    """Two hosts whose clocks are 3 s apart; the second one is the busier."""
    return hand_made_run(ranks=4, rank_nodes=(0, 0, 1, 1), skew_ns=SKEW_NS)


def untraced(run: Run) -> Run:
    hosts = []
    for host in run.telemetry:
        kept = [number for number, series in enumerate(host.series) if series.probe != "trace"]
        there = np.isin(host.which, kept)
        hosts.append(
            replace(
                host,
                trace=(),
                series=tuple(host.series[number] for number in kept),
                which=np.searchsorted(kept, host.which[there]).astype(np.int32),
                time_ns=host.time_ns[there],
                value=host.value[there],
            )
        )
    return replace(run, telemetry=tuple(hosts))


def test_each_host_is_a_line_on_one_time_axis(run: Run) -> None:
    figure = draw("hosts", run)
    lines = {name: column(figure, "at", what=name) for name in ("node0", "node1")}
    assert all(len(at) > 100 for at in lines.values())
    assert max(lines["node0"]) == pytest.approx(max(lines["node1"]), rel=0.05)
    values = [max(column(figure, "value", what=name)) for name in ("node0", "node1")]
    assert values[1] > values[0]


def test_devices_of_the_same_name_on_two_hosts_are_two_lines(run: Run) -> None:
    for one in (run, untraced(run)):
        names = {row["what"] for row in rows_of(draw("queue_depth", one)) if "depth" in row}
        assert {"node0: nvme0n1 reads", "node1: nvme0n1 reads"} <= names


def test_without_a_trace_depth_is_littles_law(run: Run) -> None:
    figure = draw("queue_depth", untraced(run))
    depths = column(figure, "depth", what="node0: nvme0n1 reads")
    assert depths[len(depths) // 2] == pytest.approx(500 * 8e-3, rel=1e-3)
    assert not any("writes" in row["what"] for row in rows_of(figure) if "depth" in row)


def test_many_hosts_are_drawn_together_or_the_busiest_alone() -> None:
    many = hand_made_run(ranks=12, rank_nodes=tuple(range(12)))
    figure = draw("hosts", many)
    assert "Only the 8 of 12 hosts with the busiest cores" in figure.caption
    assert len({row["what"] for row in rows_of(figure) if "node" in row.get("what", "")}) == 8
    depth = draw("queue_depth", many)
    assert {row["what"] for row in rows_of(depth) if "depth" in row} == {"reads", "writes"}
    assert "All devices" in depth.caption
