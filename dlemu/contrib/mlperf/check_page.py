"""The page of a check for reviewers: figures of each result, findings by rule, and what could not be judged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby

from dlemu.contrib.mlperf.check.judge import CheckReport, FindingRow
from dlemu.report.drawing import check_packages
from dlemu.report.page import Page, Words, render
from dlemu.report.table import Cell, Column, Line, Table, Tone
from dlemu.results.finding import SEVERITIES
from dlemu.results.wording import TRADEMARK

_TONES: dict[str, Tone] = {"error": "bad", "warning": "caution", "info": "plain"}
_MOST_PLACES = 200
"""Places shown per rule; the CSV has all."""
_NOT_JUDGED = ("unapplied", "run.other")


def check_html(report: CheckReport) -> str:
    """Return the page as one HTML file that loads nothing; raises UserError when a package is missing."""
    check_packages()
    errors, warnings = report.errors, report.warnings
    findings = [row for row in report.findings if row.rule not in _NOT_JUDGED]
    lacking = [row for row in report.findings if row.rule in _NOT_JUDGED]
    name = os.path.basename(os.path.abspath(report.root))
    page = Page(
        title=f"Check of {name}",
        lead="Checked against the rules of MLPerf Storage"
        + (", v3.0 as its round was judged." if report.rules == "published" else ", as the tool reads them today."),
        state="passed" if report.valid else "failed",
        verdict=("VALID" if report.valid else "INVALID", f": {errors:,} errors, {warnings:,} warnings"),
        words=[Words("How to read this page", _LEGEND)],
        tables=[*_results(report), *_by_rule(findings), *_by_rule(lacking)],
        source=name,
    )
    return render(page, ())


_LEGEND = (
    "Results and checkpoints: figures from the files. Rates of training are recomputed where the ranks recorded their "
    "steps; rates of checkpoints are rank 0's, as published.",
    "Below them a table for each broken rule, the most severe first: where, what was seen, and what was wanted. "
    "Brackets give the official checker's name of the rule.",
    "`unapplied` lists what could not be judged, and what was missing; docs/mlperf-rules.md of dlemu has all rules.",
    TRADEMARK,
)


def _results(report: CheckReport) -> Iterator[Table]:
    wrong = {row.path for row in report.findings if row.severity == "error"}

    def errors(path: str) -> Cell:
        count = sum(found == path or found.startswith(f"{path}{os.sep}") for found in wrong)
        return Line(str(count), "bad" if count else "good")

    training: list[list[Cell]] = [
        [
            *(_organisation(row.path), row.path, f"v{row.edition} {row.division}", str(row.workload)),
            *(str(row.accelerators), str(row.accelerator), str(len(row.runs)), errors(row.path)),
        ]
        for row in report.results
    ]
    if training:
        names = ("organisation", "result", "edition", "workload", "accelerators", "kind", "runs", "places with errors")
        yield Table(title="Training", columns=[Column(name) for name in names], rows=training, dense=True)
    calls: list[list[Cell]] = [
        [
            *(_organisation(row.path), row.path, f"v{row.edition} {row.division}", str(row.model)),
            *(str(row.processes), _rate(row.save_gib_per_second), _rate(row.load_gib_per_second), errors(row.path)),
        ]
        for row in report.checkpoints
    ]
    if calls:
        rates = ("save, GiB/s", "load, GiB/s", "places with errors")
        columns = [Column(name) for name in ("organisation", "result", "edition", "model", "processes", *rates)]
        yield Table(title="Checkpoints", columns=columns, rows=calls, dense=True)
    others: list[list[Cell]] = [
        [_organisation(row.path), row.path, f"v{row.edition} {row.division}", figure, errors(row.path)]
        for row in report.others
        for figure in row.figures or ("nothing could be read",)
    ]
    if others:
        shown = ("organisation", "result", "edition", "published and recomputed", "places with errors")
        title = "Key-value caches and vector databases"
        yield Table(title=title, columns=[Column(name) for name in shown], rows=others, dense=True)


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _organisation(path: str) -> str:
    """Return the name of the folder below `closed` or `open`; empty where a path has neither."""
    names = path.split(os.sep)
    place = next((index for index, name in enumerate(names) if name.lower() in ("closed", "open")), len(names))
    return "".join(names[place + 1 : place + 2])


def _by_rule(rows: Sequence[FindingRow]) -> Iterator[Table]:
    ordered = sorted(rows, key=lambda row: (SEVERITIES.index(row.severity), row.rule, row.path))
    for (severity, rule, official), same in groupby(ordered, key=lambda row: (row.severity, row.rule, row.official)):
        found = list(same)
        shown: list[list[Cell]] = [
            [_organisation(row.path), row.path, row.seen, row.wanted] for row in found[:_MOST_PLACES]
        ]
        more = [f"and {len(found) - _MOST_PLACES:,} more"] if len(found) > _MOST_PLACES else []
        title = f"{severity} {rule}{f' [{official}]' if official else ''}: {len(found):,}"
        columns = [Column(name) for name in ("organisation", "where", "seen", "wanted")]
        notes: list[Cell] = [Line(f"To do: {found[0].fix}.", _TONES[severity]), *more]
        yield Table(title=title, columns=columns, rows=shown, notes=notes, dense=True)
