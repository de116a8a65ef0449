"""Pages of vendors' documents made again: their tables have the published numbers' units, their figures every drive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlemu.contrib.reproduce.document import DocumentQuestion
from dlemu.contrib.reproduce.figures import figures
from dlemu.contrib.reproduce.page import PARTS, lines_of, tables_of
from dlemu.contrib.reproduce.rows import OpenedDocument, open_document
from dlemu.contrib.reproduce.run import REPRODUCED, Reproduced, StepDone
from dlemu.report.table import Table
from dlemu.results.answer_files import save_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.studies.answers import SWEEP, SweepAnswer, SweepPoint, SweepQuestion
from tests.report.folders import hand_made_run
from tests.results.made_probe import probed
from tests.runs import write_run

DRIVES = ("/mnt/new", "/mnt/old")


def opened(document: str, results: dict[str, Any], folder: Path = Path("folder"), **given: Any) -> OpenedDocument:
    """A document; the results of its sweeps are also in a folder, where one is given."""
    question = DocumentQuestion(document=document, drives=DRIVES, **given)
    steps = tuple(StepDone(name=name, command="sweep", words=(), seconds=1.0, folder=name) for name in results)
    answer = Reproduced(complete=True, title="T", about="A.", question=question, capacity_tb=(4.0, 2.0), steps=steps)
    for name, result in results.items() if folder.is_absolute() else ():
        save_answer(str(folder / name), SWEEP, result)
    return OpenedDocument(str(folder), answer, results)


def table(document: OpenedDocument, number: int = 0) -> Table:
    return list(tables_of(document))[number]


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
    return SweepAnswer(
        complete=True, question=SweepQuestion(overrides=(), launcher="", settings_digest=""), points=points
    )


def packing(axis: str) -> SweepAnswer:
    """What a sweep of packings saves, as far as the tables show it."""
    points = tuple(
        SweepPoint(
            settings={axis: str(value), "dataset.data_folder": f"{drive}/colfax"},
            folder="p",
            figures=JobFigures(
                kind="pack",
                workload="colfax",
                ranks=value,
                passed=None,
                metrics={"read_mb_per_second": Value(92.0), "seconds": Value(2.0)},
            ),
        )
        for value in (4, 8)
        for drive in DRIVES
    )
    return SweepAnswer(complete=True, question=SweepQuestion(settings_digest=""), points=points)


def test_micron_s_figures_over_time(tmp_path: Path) -> None:
    run = hand_made_run(ranks=4, epochs=3, rank_nodes=(0, 0, 1, 1))
    write_run(replace(run, folder=str(tmp_path / "sweep" / "p")))
    sweep = swept({"/mnt/new": 2552.0, "/mnt/old": 2906.0})
    trained = opened("micron-9400", {"sweep": sweep}, tmp_path)
    assert [row[:3] for row in table(trained).rows] == [["1", "90.00", "90.00"], ["18", "90.00", "90.00"]]
    drawn = dict(figures(trained))
    assert list(drawn) == ["micron_9400"]
    spec = str(drawn["micron_9400"].chart.to_dict(validate=False))
    assert all(title in spec for title in ("throughput, MiB/s", "mean queue depth", "share of the time"))


def documents(folder: Path) -> dict[str, OpenedDocument]:
    sweep = swept({"/mnt/new": 2552.0, "/mnt/old": 2906.0})
    packs = {f"table-{number}": packing("pack.images" if number == 4 else "ranks") for number in (2, 3, 4)}
    probes = {"probe-1": probed(), "probe-2": probed()}
    return {
        "kioxia": opened("kioxia", {"sweep": sweep}, folder),
        "amax": opened("amax", {"sweep": sweep, **probes}, price=(1208.0, 106.0)),
        "colfax": opened("colfax", packs),
        "micron-6550": opened("micron-6550", probes, watts=(20.0, 25.0)),
    }


@pytest.mark.parametrize(
    ("document", "number", "place", "row"),
    [
        ("kioxia", 1, -1, ["18", "+12.2", "+44.5", "618", "543"]),
        ("amax", 0, 0, ["1", "45,936", "52,308"]),
        ("amax", 1, 0, ["new", "8,000", "2,000,000", "1.300", "302.0"]),
        ("amax", 1, 1, ["old", "8,000", "2,000,000", "1.300", "53.00"]),
        ("colfax", 0, 0, ["4", "92.00", "92.00", "2.000", "2.000"]),
    ],
)
def test_a_table_has_the_published_numbers_units(
    document: str, number: int, place: int, row: list[str], tmp_path: Path
) -> None:
    assert list(table(documents(tmp_path)[document], number).rows[place]) == row


@pytest.mark.parametrize(
    ("new", "old"),
    [
        *(({"cut_steps": (10,)},) * 2, ({"outcome": "no verdict"},) * 2),
        ({"computation_seconds": 1.0}, {"computation_seconds": 2.0}),
    ],
)
def test_epochs_cut_short_without_verdict_or_of_other_work_save_no_time(new: Any, old: Any, tmp_path: Path) -> None:
    sweep = swept({"/mnt/new": 2552.0, "/mnt/old": 2906.0})
    points = (
        replace(point, figures=replace(point.figures, **(old if place % 2 else new)))
        for place, point in enumerate(sweep.points)
        if point.figures
    )
    saved = table(opened("kioxia", {"sweep": replace(sweep, points=tuple(points))}, tmp_path), 1)
    assert (saved.rows, [str(note).endswith("both drives: 1, 18.") for note in saved.notes]) == ([], [True])


def test_colfax_s_tables_stand_beside_each_other(tmp_path: Path) -> None:
    tables = list(tables_of(documents(tmp_path)["colfax"]))
    assert [made.title.partition(":")[0] for made in tables] == ["Table 2", "Table 3", "Table 4"]


def test_an_interrupted_document_is_not_called_reproduced(tmp_path: Path) -> None:
    whole = documents(tmp_path)["colfax"]
    cut = replace(whole, answer=replace(whole.answer, complete=False))
    said = [next(lines_of(each)).value.partition(",")[0] for each in (whole, cut)]
    assert said == ["reproduced", "INCOMPLETE"]


def test_a_step_whose_results_are_gone_is_named(tmp_path: Path) -> None:
    steps = (
        StepDone(name="data-1", command="datagen", words=(), seconds=1.0, folder="data-1"),
        StepDone(name="sweep", command="sweep", words=(), seconds=1.0, folder="sweep-2"),
    )
    answer = replace(opened("micron-9400", {}).answer, steps=steps)
    save_answer(str(tmp_path), REPRODUCED, answer)
    assert not open_document(str(tmp_path)).results
    assert PARTS.screen is not None
    screen = PARTS.screen(answer, str(tmp_path))
    assert screen.lines[0].value.startswith("INCOMPLETE")
    assert f"{tmp_path}/sweep-2 holds no result" in screen.notes[0]
    assert not any("data-1" in note for note in screen.notes)


@pytest.mark.parametrize(
    ("document", "names"),
    [("kioxia", ["kioxia_metrics"]), ("amax", ["amax_epochs", "amax_reads"]), ("micron-6550", ["micron_6550_rates"])],
)
def test_every_document_has_its_figures(document: str, names: list[str], tmp_path: Path) -> None:
    drawn = dict(figures(documents(tmp_path)[document]))
    assert set(names) <= set(drawn)
    for figure in drawn.values():
        spec = str(figure.chart.to_dict(validate=False))
        assert "new" in spec
        assert "old" in spec
