"""Figures of runs on several hosts: each host is told from the others, and no device is counted twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from dlemu.report.result import Run, open_run
from dlemu.report.summary import build_summary
from tests.report.folders import write_run
from tests.runs import make_job, make_log, with_telemetry

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
from tests.report.test_figures import column, draw, rows_of

SKEW_NS = 3_000_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two hosts whose clocks are 3 s apart; the second one is the busier."""
    folder = tmp_path_factory.mktemp("hosts")
    return open_run(str(write_run(folder, ranks=4, rank_nodes=(0, 0, 1, 1), skew_ns=SKEW_NS)))


def untraced(run: Run) -> Run:
    assert run.telemetry is not None
    kept = run.telemetry.filter(pc.not_equal(pc.cast(run.telemetry["probe"], "string"), "trace"))
    return replace(run, telemetry=kept, block_trace=None)


def test_each_host_is_a_line_on_one_time_axis(run: Run) -> None:
    figure = draw("hosts", run)
    lines = {name: column(figure, "at", what=name) for name in ("node0", "node1")}
    assert all(len(at) > 100 for at in lines.values())
    assert max(lines["node0"]) == pytest.approx(max(lines["node1"]), rel=0.05)
    values = [max(column(figure, "value", what=name)) for name in ("node0", "node1")]
    assert values[1] > values[0]


def test_the_detail_is_of_the_busiest_host_and_says_so(run: Run) -> None:
    assert "This is node1, whose cores were the busiest of 2 hosts" in draw("host", run).says


def test_one_host_has_no_figure_beside_others(tmp_path: Path) -> None:
    assert draw("hosts", open_run(str(write_run(tmp_path)))) is None


def test_devices_of_the_same_name_on_two_hosts_are_two_lines(run: Run) -> None:
    for one in (run, untraced(run)):
        names = {row["what"] for row in rows_of(draw("queue_depth", one)) if "depth" in row}
        assert {"node0: nvme0n1 reads", "node1: nvme0n1 reads"} <= names


def test_without_a_trace_depth_is_littles_law(run: Run) -> None:
    figure = draw("queue_depth", untraced(run))
    depths = column(figure, "depth", what="node0: nvme0n1 reads")
    assert depths[len(depths) // 2] == pytest.approx(500 * 8e-3, rel=1e-3)
    assert not any("writes" in row["what"] for row in rows_of(figure) if "depth" in row)


def test_many_hosts_are_drawn_together_or_the_busiest_alone(tmp_path: Path) -> None:
    many = open_run(str(write_run(tmp_path, ranks=12, rank_nodes=tuple(range(12)))))
    figure = draw("hosts", many)
    assert "The 8 with the busiest cores of 12 hosts" in figure.says
    assert len({row["what"] for row in rows_of(figure) if "node" in row.get("what", "")}) == 8
    depth = draw("queue_depth", many)
    assert {row["what"] for row in rows_of(depth) if "depth" in row} == {"reads", "writes"}
    assert "All devices" in depth.says


def test_a_device_that_two_containers_of_a_machine_see_counts_once() -> None:
    job = make_job()
    log = with_telemetry(make_log(job, rank_nodes=(0, 1)))
    twins = replace(log, telemetry=tuple(replace(host, boot_id="one") for host in log.telemetry))
    for one, counted in ((log, [True, True]), (twins, [True, False])):
        assert [device["counted"] for device in build_summary(job, one)["telemetry"]["devices"]] == counted
