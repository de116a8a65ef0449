"""Concurrent jobs on the terminal and on their page."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rich.console import Console

from dlemu.report.page import Opened, Page, Words
from dlemu.report.series import difference_rows
from dlemu.report.table import Line, Table, columns, print_lines, print_table
from dlemu.report.units import value_with_interval
from dlemu.results.kinds import Parts, catalogue_of
from dlemu.studies.together.run import JobTogether, Together, read_together


def print_together(answer: Together, folder: str, console: Console) -> None:
    """Print one table per job, what a reader of the numbers must know, and the verdicts."""
    for number, one in enumerate(answer.jobs, start=1):
        print_table(_table(one, number), console)
    print_lines([Line(f"- {issue}", "caution") for issue in answer.issues], console)
    print_lines([*(Line(verdict, "strong") for verdict in _verdicts(answer)), f"results: {folder}"], console)


def open_page(folder: str) -> Opened:
    """Return the jobs in a folder with their page; raises UserError."""
    answer = read_together(folder)
    assert answer is not None  # together.json, by which the kind was recognised
    verdicts = list(_verdicts(answer))
    notes = [Words("Notes on these numbers", answer.issues)] if answer.issues else []
    page = Page(
        title=" and ".join(_title(one) for one in answer.jobs),
        lead="Each job ran alone, then all at once." if all(one.alone for one in answer.jobs) else "All ran at once.",
        state="neutral" if answer.complete else "open",
        verdict=(verdicts[0] if verdicts else "INCOMPLETE", ""),
        words=[Words("What the others cost each job", verdicts), *notes],
        tables=[_table(one, number) for number, one in enumerate(answer.jobs, start=1)],
        source=os.path.basename(os.path.abspath(folder)),
    )
    return Opened(answer, page)


def _title(one: JobTogether) -> str:
    measured = one.beside or one.alone
    return f"{one.command} {measured.figures.workload}" if measured else one.command


def _table(one: JobTogether, number: int) -> Table:
    """Return a table of a job's metrics, alone and together with the others."""
    title = f"Job {number}: {_title(one)}"
    measured = one.beside or one.alone
    if measured is None:
        return Table(title=title, columns=columns("metric"), rows=[])
    catalogue = catalogue_of(measured.figures.kind)
    notes = [] if one.overlap_percent is None else [f"others ran during {one.overlap_percent:.0f} % of its time"]
    if one.cost:
        head = columns("metric", "together", "alone", "change", "+-", right=range(1, 5), whole=range(5))
        rows = difference_rows(one.cost, catalogue, intervals=False)
        return Table(title=title, columns=head, rows=rows, notes=notes)
    rows = [
        (metric.label, value_with_interval(measured.figures.metrics[metric.name], metric.unit))
        for metric in catalogue.compared
        if metric.name in measured.figures.metrics
    ]
    return Table(title=title, columns=columns("metric", "together", right=(1,)), rows=rows, notes=notes)


def _verdicts(answer: Together) -> Iterator[str]:
    """Yield what the others cost each job, by the main metric of its kind (the first headline)."""
    for number, one in enumerate(answer.jobs, start=1):
        if one.alone is None or one.beside is None:
            continue
        catalogue = catalogue_of(one.beside.figures.kind)
        known = (metric for metric in (*catalogue.headlines, *catalogue.compared) if metric.name in one.cost)
        shown = next(known, None)
        if shown is not None:
            cost = one.cost[shown.name]  # a: together, b: alone
            percent = "" if cost.difference_percent is None else f" ({cost.difference_percent:+.1f} %)"
            measured = f"{cost.b:,.3g} {shown.unit} alone, {cost.a:,.3g} together{percent}"
            yield f"job {number}, {_title(one)}: {shown.title} {measured}"


PARTS = Parts(read=read_together, answer_type=Together, open_page=open_page, show=print_together)
