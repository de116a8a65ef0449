"""Every figure of a run: it draws what the result holds, in few marks, and nothing from nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dlemu.jobs.training.result import Run
from dlemu.jobs.training.steplog import STEP_DTYPE
from dlemu.jobs.training.summary import Metrics
from dlemu.metrics.au import au_percent
from tests.report.folders import hand_made_run, with_summary

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
from dlemu.jobs.training import figures
from dlemu.report.page import picture_file

FIGURES = {draw.__name__: draw for draw in figures.FIGURES}


@pytest.fixture(scope="module")
def run() -> Run:
    return hand_made_run(ranks=3, epochs=3, steps=14)


@pytest.fixture(scope="module")
def hosts() -> Run:
    return hand_made_run(ranks=2, rank_nodes=(0, 1))


def draw(name: str, run: Run) -> Any:
    return FIGURES[name](run)


def rows_of(figure: Any) -> list[dict[str, Any]]:
    return [row for text in _texts(figure.chart.to_dict()) for row in json.loads(text)]


def _texts(spec: Any) -> Iterator[str]:
    if isinstance(spec, dict):
        if isinstance(spec.get("values"), str):
            yield spec["values"]
        yield from (text for part in spec.values() for text in _texts(part))
    elif isinstance(spec, list):
        yield from (text for part in spec for text in _texts(part))


def column(figure: Any, name: str, **wanted: Any) -> list[Any]:
    found = [row for row in rows_of(figure) if all(row.get(key) == value for key, value in wanted.items())]
    return [row[name] for row in found if name in row]


def check_drawn(figure: Any, *, marks: int = 4) -> None:
    assert figure is not None
    assert figure.title
    assert figure.caption.endswith(".")
    svg = picture_file(figure, "svg").decode()
    assert svg.count('class="mark-') >= marks
    assert "role-axis-title" in svg
    assert len(svg) < 150_000
    assert "NaN" not in svg


@pytest.mark.parametrize("name", FIGURES)
def test_it_draws_few_marks_on_axes_with_units_and_nothing_from_nothing(name: str, run: Run, hosts: Run) -> None:
    check_drawn(draw(name, run), marks=5)
    check_drawn(draw(name, hosts), marks=5)
    empty = with_summary(replace(run, rows=np.zeros(0, STEP_DTYPE), telemetry=()), metrics=Metrics())
    assert draw(name, empty) is None


def test_hundreds_of_ranks_need_no_more_marks() -> None:
    many = hand_made_run(telemetry=False, ranks=600, epochs=2, steps=3)
    for name in ("step_split", "throughput"):
        assert len(picture_file(draw(name, many), "svg")) < 150_000


def test_the_accelerators_time_is_whole_and_its_computing_is_au_by_the_rules(run: Run) -> None:
    figure, au = draw("step_split", run), run.summary.metrics.au_whole_percent
    assert au is not None
    owners = [au.mean, *au.per_epoch, *map(au_percent, run.training.by_rank)]
    assert sum(column(figure, "percent")) == pytest.approx(100 * len(owners), abs=0.5)
    computing = [row["percent"] for row in rows_of(figure) if row["part"] == f"computing {au.mean:.1f} %"]
    assert computing == pytest.approx(owners, abs=0.01)


def test_throughput_holds_every_byte_that_was_read(run: Run) -> None:
    figure = draw("throughput", run)
    at, mb = (column(figure, name, line="read by the loader") for name in ("at", "value"))
    widths = np.diff([0.0, *at])
    assert float((np.array(mb) * widths).sum()) == pytest.approx((run.summary.metrics.app_bytes or 0) / 1e6, rel=0.01)


def test_texts_of_others_stay_texts() -> None:
    nasty = "<script>alert(1)</script>"
    run = hand_made_run(ranks=2, rank_nodes=(0, 1))
    hosts = tuple(replace(host, host=f"{nasty}{node}") for node, host in enumerate(run.facts.journal.hosts))
    telemetry = tuple(replace(host, host=hosts[host.node].host) for host in run.telemetry)
    facts = replace(run.facts, journal=replace(run.facts.journal, hosts=hosts))
    run = replace(run, facts=facts, telemetry=telemetry)
    svg = picture_file(draw("hosts", run), "svg").decode()
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
