"""The page of a check for reviewers: figures of each result, findings by rule, and what could not be judged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby

from dlemu.contrib.mlperf.check.judge import CheckReport, FindingRow
from dlemu.report.drawing import check_packages
from dlemu.report.page import Page, render
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Cell, Column, Line, Table, Tone, Words
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
    edition = ", v3.0 as its round was judged." if report.rules == "published" else ", as the tool reads them today."
    counts = f"{errors:,} errors, {warnings:,} warnings"
    said = Said("VALID", counts, tone="good") if report.valid else Said("INVALID", counts, tone="bad")
    page = Page(
        screen=Screen(title=f"Check of {name}", lines=[said], folder=report.root),
        lead=f"Checked against the rules of MLPerf Storage{edition}",
        sections=[
            *_results(report),
            *_by_rule(findings),
            *_by_rule(lacking),
            Words("How to read this page", _LEGEND),
        ],
        source=name,
    )
    return render(page)


_LEGEND = (
    "Results: figures from the files. Rates of training are recomputed where the ranks recorded their "
    "steps; rates of checkpoints are rank 0's, as published.",
    "Below them a table for each broken rule, the most severe first: where, what was seen, and what was wanted. "
    "Brackets give the official checker's name of the rule.",
    "`unapplied` lists what could not be judged, and what was missing; docs/mlperf-rules.md of dlemu has all rules.",
    TRADEMARK,
)


def _results(report: CheckReport) -> Iterator[Table]:
    wrong = {row.path for row in report.findings if row.severity == "error"}
    rows: list[list[Cell]] = []
    for row in report.results:
        errors = sum(found == row.path or found.startswith(f"{row.path}{os.sep}") for found in wrong)
        rates = [f"{key.partition('_')[0]} {rate:.3f} GiB/s" for key, rate in row.rates.items()]
        figures = "; ".join([*rates, *row.figures])
        rows.append(
            [
                *(_organisation(row.path), row.path, f"v{row.edition} {row.division}", row.benchmark, str(row.model)),
                *(str(row.processes or ""), row.accelerator or "", str(len(row.runs)), figures),
                Line(str(errors), "bad" if errors else "good"),
            ]
        )
    names = ("organisation", "result", "edition", "benchmark", "model", "processes", "accelerator", "runs")
    columns = [Column(name) for name in (*names, "published and recomputed", "places with errors")]
    if rows:
        yield Table(title="Results", columns=columns, rows=rows, dense=True)


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
