"""Pages of vendors' documents made again: their tables have the published numbers' units, their figures every drive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlemu.contrib.pack.limits import PackLimit
from dlemu.contrib.pack.result import PackAnswer, PackFigures, PackPoint, PackQuestion, PackShares
from dlemu.contrib.reproduce.opened import OpenedDocument
from dlemu.contrib.reproduce.page import document_page
from dlemu.contrib.reproduce.run import DOCUMENTS, Reproduced
from dlemu.contrib.reproduce.steps import DocumentQuestion
from dlemu.jobs.probe.result import Latency, ProbeAnswer, ProbeCell, ProbeQuestion
from dlemu.report.drawing import figures
from dlemu.report.figure_base import DESK, PHONE
from dlemu.report.table import Table
from dlemu.results.figures import JobFigures, Value
from dlemu.studies.answers import SweepAnswer, SweepPoint, SweepQuestion
from tests.report.folders import hand_made_run
from tests.runs import make_job

DRIVES = ("/mnt/new", "/mnt/old")


def opened(document: str, results: dict[str, Any], **given: Any) -> OpenedDocument:
    question = DocumentQuestion(document=document, drives=DRIVES, **given)
    answer = Reproduced(complete=True, title="T", about="A.", question=question, capacity_tb=(4.0, 2.0))
    return OpenedDocument("folder", answer, results)


def table(document: OpenedDocument, number: int = 0) -> Table:
    return document_page(document).tables[number]


def swept(seconds: dict[str, float]) -> SweepAnswer:
    points = tuple(
        SweepPoint(
            settings={"ranks": str(ranks), "dataset.data_folder": f"{drive}/data"},
            folder="p",
            figures=JobFigures(
                kind="training",
                workload="unet3d",
                ranks=ranks,
                epochs=5,
                passed=True,
                metrics={
                    "total_seconds": Value(seconds[drive] * 18 / ranks),
                    "au_percent": Value(90.0),
                    "device_mb_per_second": Value(100.0 * ranks),
                },
            ),
        )
        for ranks in (1, 18)
        for drive in DRIVES
    )
    return SweepAnswer(complete=True, question=SweepQuestion(settings_digest=""), points=points)


def probed(**cells: Any) -> ProbeAnswer:
    host = make_job().workload  # any facts of a host do: the tables don't show them
    made = tuple(
        ProbeCell(
            access="randread",
            size_bytes=size << 10,
            depth=1,
            jobs=workers,
            seconds=1.0,
            mb_per_second=1000.0 * workers,
            iops=1e6 * workers / size,
            latency_ms=Latency(mean=1.3, p50=1, p90=1, p99=1, p999=1, max=1),
            cpu_seconds_per_gb=0.1,
        )
        for size in (4, 1024)
        for workers in (1, 8)
    )
    question = ProbeQuestion(target="/mnt/new", seconds=1.0)
    return ProbeAnswer(complete=True, question=question, engine="fio", host=host, cells=made)  # type: ignore[arg-type]


def packing(axis: str) -> PackAnswer:
    figures_of = PackFigures(
        images=8,
        processes=4,
        files=2,
        images_per_file=4,
        seconds=2.0,
        images_per_second=4.0,
        read_bytes=8 * 23_000_000,
        written_bytes=100,
        read_mb_per_second=92.0,
        write_mb_per_second=1.0,
        cpu_seconds=1.0,
        cpu_percent=25.0,
        cpu_seconds_per_gb=5.0,
        shares=PackShares(reading=50, computing=20, wanting_core=10, writing=10, idle=10),
        limited_by=PackLimit(what="storage", confidence="medium", evidence=()),
    )

    def by(value: str) -> PackFigures:
        return (
            replace(figures_of, processes=int(value)) if axis == "processes" else replace(figures_of, images=int(value))
        )

    points = tuple(
        PackPoint(settings={axis: value, "dataset.data_folder": f"{drive}/colfax"}, folder="p", figures=by(value))
        for value in ("4", "8")
        for drive in DRIVES
    )
    return PackAnswer(complete=True, question=PackQuestion(overrides=(), settings_digest=""), points=points)


def test_micron_s_figures_over_time() -> None:
    run = hand_made_run(ranks=2)
    trained = opened("micron-9400", {"ranks-1": run, "ranks-15": run})
    assert [row[0] for row in table(trained).rows] == ["1", "15"]
    for canvas in (DESK, PHONE):
        drawn = dict(figures(trained, f"{DOCUMENTS}.micron_9400", canvas))
        assert list(drawn) == ["micron_9400_throughput", "micron_9400_depth"]
        assert "requests that the device had not yet completed" in drawn["micron_9400_depth"].caption


def documents() -> dict[str, OpenedDocument]:
    sweep = swept({"/mnt/new": 2552.0, "/mnt/old": 2906.0})
    packs = {f"table-{number}": packing("images" if number == 4 else "processes") for number in (2, 3, 4)}
    probes = {"probe-1": probed(), "probe-2": probed()}
    return {
        "kioxia": opened("kioxia", {"sweep": sweep}),
        "amax": opened("amax", {"sweep": sweep, **probes}, price=(1208.0, 106.0)),
        "colfax": opened("colfax", packs),
        "micron-6550": opened("micron-6550", probes, watts=(20.0, 25.0)),
    }


def test_the_time_that_kioxia_saves() -> None:
    saved = table(documents()["kioxia"], 1)
    assert saved.rows[-1] == ["18", "+12.2", "+44.5", "14.18", "16.14", "618", "543"]


@pytest.mark.parametrize("change", [{"cut_steps": (10,)}, {"outcome": "no verdict"}])
def test_epochs_that_were_cut_short_or_have_no_verdict_save_no_time(change: dict[str, Any]) -> None:
    sweep = swept({"/mnt/new": 2552.0, "/mnt/old": 2906.0})
    points = [replace(point, figures=replace(point.figures, **change)) for point in sweep.points if point.figures]
    saved = table(opened("kioxia", {"sweep": replace(sweep, points=tuple(points))}), 1)
    assert (saved.rows, [str(note).endswith("both drives: 1, 18.") for note in saved.notes]) == ([], [True])


def test_amax_s_storages_beside_each_other() -> None:
    rows = table(documents()["amax"]).rows
    assert rows[0] == ["new", "45,936.0", "2,552.0", "8,000.0", "2,000,000", "1.30", "302.0"]
    assert [row[-1] for row in rows] == ["302.0", "53.0"]


def test_micron_s_gb_per_second_and_watt() -> None:
    first, second = document_page(documents()["micron-6550"]).tables
    assert first.rows[1] == ["8", "8.000", "0.4000", "8.000", "0.4000"]
    assert second.rows[1] == ["8", "8.000", "0.3200", "8.000", "0.3200"]


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ("kioxia", ["kioxia_metrics"]),
        ("amax", ["amax_storages"]),
        ("colfax", ["colfax_table_2", "colfax_table_3", "colfax_table_4"]),
        ("micron-6550", ["micron_6550_rates"]),
    ],
)
def test_every_document_has_its_figures(document: str, names: list[str]) -> None:
    for canvas in (DESK, PHONE):
        drawn = dict(figures(documents()[document], f"{DOCUMENTS}.{document.replace('-', '_')}", canvas))
        assert set(names) <= set(drawn)
        for figure in drawn.values():
            spec = str(figure.chart.to_dict(validate=False))
            assert "new" in spec
            assert "old" in spec
