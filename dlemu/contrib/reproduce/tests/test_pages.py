"""Pages of vendors' documents made again: their tables have the published numbers' units, their figures every drive."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.contrib.reproduce import document
from dlemu.contrib.reproduce.document import DocumentQuestion
from dlemu.contrib.reproduce.figures import figures
from dlemu.contrib.reproduce.page import screen, sections
from dlemu.contrib.reproduce.run import Reproduced, StepDone, reproduce
from dlemu.report.table import Table
from dlemu.results.answer_files import save_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.results.kinds import kind_of_command, read_result
from dlemu.studies.answers import SweepAnswer, SweepPoint, SweepQuestion
from tests.goldens.render import RESULTS
from tests.report.folders import hand_made_run
from tests.runs import write_run

DRIVES = ("/mnt/new", "/mnt/old")


def swept(axis: str, values: tuple[int, ...], kind: str, **figures: Any) -> SweepAnswer:
    """A sweep with KIOXIA's published times on both drives; a figure that is a dict is of each of them."""
    points = []
    for value, (drive, seconds) in product(values, (("/mnt/new", 2552.0), ("/mnt/old", 2906.0))):
        means = {"au_percent": 90.0, "read_mb_per_second": 92.0, "seconds": 2.0}
        means |= {"total_seconds": seconds * 18 / value, "device_mb_per_second": 100.0 * value}
        own: dict[str, Any] = {name: one[drive] if isinstance(one, dict) else one for name, one in figures.items()}
        made = JobFigures(kind=kind, workload="w", ranks=value, metrics={k: Value(v) for k, v in means.items()}, **own)
        settings = {axis: str(value), "dataset.data_folder": f"{drive}/data"}
        points.append(SweepPoint(settings=settings, folder="p", figures=made))
    return SweepAnswer(complete=True, question=SweepQuestion(settings_digest=""), points=tuple(points))


TRAINED = swept("ranks", (1, 18), "training", outcome="pass", epochs=5)
PACKED = {f"table-{number}": swept("pack.images" if number == 4 else "ranks", (4, 8), "pack") for number in (2, 3, 4)}
PROBED: dict[str, Any] = {f"probe-{number}": read_result(str(RESULTS / "probe")) for number in (1, 2)}
DOCUMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "kioxia": ({"sweep": TRAINED}, {}),
    "amax": ({"sweep": TRAINED, **PROBED}, {"price": (1208.0, 106.0)}),
    "colfax": (PACKED, {}),
    "micron-6550": (PROBED, {"watts": (20.0, 25.0)}),
    "micron-9400": ({"sweep": TRAINED}, {}),
}


def reproduced(document: str, folder: Path, results: dict[str, Any] | None = None) -> Reproduced:
    """A document whose steps have these results in a folder."""
    known, settings = DOCUMENTS[document]
    steps = []
    for name, result in (results or known).items():
        command: Any = "probe" if name.startswith("probe") else "sweep"
        save_answer(str(folder / name), kind_of_command(command).answer, result)
        steps.append(StepDone(name=name, command=command, words=(), folder=name))
    question = DocumentQuestion(document=document, drives=DRIVES, **settings)
    return Reproduced(complete=True, question=question, steps=tuple(steps))


def tables(answer: Reproduced, folder: Path) -> list[Table]:
    return [section for section in sections(answer, str(folder)) if section.title != "How"]


@pytest.mark.parametrize(
    ("document", "number", "place", "row"),
    [
        ("kioxia", 1, -1, ["18", "12.18", "44.46", "617.9", "542.6"]),
        ("amax", 0, 0, ["1", "45,936", "52,308"]),
        ("amax", 1, 0, ["new", "398.6", "6,083", "0.606", "4,465"]),
        ("amax", 1, 1, ["old", "398.6", "6,083", "0.606", "391.8"]),
        ("colfax", 0, 0, ["4", "92.00", "92.00", "2.000", "2.000"]),
        ("micron-9400", 0, 1, ["18", "90.00", "90.00", "1,800", "1,800"]),
    ],
)
def test_a_table_has_the_published_units(document: str, number: int, place: int, row: Any, tmp_path: Path) -> None:
    assert list(tables(reproduced(document, tmp_path), tmp_path)[number].rows[place]) == row


OTHER_WORK = {"computation_seconds": {"/mnt/new": 1.0, "/mnt/old": 2.0}}


@pytest.mark.parametrize("changed", [{"cut_steps": (10,)}, {"outcome": "no verdict"}, OTHER_WORK])
def test_epochs_cut_short_without_verdict_or_of_other_work_save_no_time(changed: Any, tmp_path: Path) -> None:
    sweep = swept("ranks", (1, 18), "training", **{"outcome": "pass", "epochs": 5} | changed)
    assert len(tables(reproduced("kioxia", tmp_path, {"sweep": sweep}), tmp_path)) == 1


def test_a_document_says_whether_all_of_it_ran(tmp_path: Path) -> None:
    whole = reproduced("colfax", tmp_path)
    assert [made.title.partition(":")[0] for made in tables(whole, tmp_path)] == ["Table 2", "Table 3", "Table 4"]
    said = [screen(answer, str(tmp_path)).lines[0].value for answer in (whole, replace(whole, complete=False))]
    assert [value.partition(",")[0] for value in said] == ["reproduced", "INCOMPLETE"]


def test_a_step_whose_results_are_gone_is_named(tmp_path: Path) -> None:
    answer = reproduced("micron-9400", tmp_path)
    (tmp_path / "sweep" / "sweep.json").unlink()
    with pytest.raises(UserError, match=f"{tmp_path}/sweep holds no result"):
        screen(answer, str(tmp_path))


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ("kioxia", ["kioxia_metrics"]),
        ("amax", ["amax_epochs", "amax_reads"]),
        ("colfax", ["colfax_table_2", "colfax_table_3", "colfax_table_4"]),
        ("micron-6550", ["micron_6550_rates"]),
        ("micron-9400", ["micron_9400"]),
    ],
)
def test_every_document_has_its_figures(document: str, names: list[str], tmp_path: Path) -> None:
    if document == "micron-9400":
        run = hand_made_run(ranks=4, epochs=3, rank_nodes=(0, 0, 1, 1))
        write_run(replace(run, folder=str(tmp_path / "sweep" / "p")))
    drawn = dict(figures(reproduced(document, tmp_path), str(tmp_path)))
    assert list(drawn) == names
    for figure in drawn.values():
        spec = str(figure.chart.to_dict(validate=False))
        assert "new" in spec
        assert "old" in spec
    if document == "micron-9400":
        assert all(title in spec for title in ("throughput, MiB/s", "mean queue depth", "share of the time"))


SIXTH = """
title: "Acme: random reads"
steps:
  - {name: probe, command: probe, says: "reads of {drive}", words: [--size, 4k]}
tables:
  - {title: Figure 1, of: probe, across: {depth: workers}, values: {MB/s: mb_per_second}, figure: acme_reads}
"""


def test_a_further_document_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(commands: list[Any]) -> None:
        save_answer(commands[0].folder, "probe.json", PROBED["probe-1"])

    (tmp_path / "acme-1.yaml").write_text(SIXTH)
    monkeypatch.setattr(document, "FOLDER", str(tmp_path))
    monkeypatch.setattr("dlemu.runner.child_run.run_commands", run)
    question = DocumentQuestion(document="acme-1", drives=(str(tmp_path),))
    answer, folder = reproduce(question, folder=str(tmp_path / "result"))
    assert answer.complete
    assert next(iter(sections(answer, folder))).title == "Figure 1"
    assert [name for name, _ in figures(answer, folder)] == ["acme_reads"]
