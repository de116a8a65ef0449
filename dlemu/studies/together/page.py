"""Concurrent jobs on the terminal and on their page."""

from __future__ import annotations

from dlemu.report.screen import Said, Screen
from dlemu.report.table import Section, Table, columns
from dlemu.report.units import value_with_interval
from dlemu.results.answer_files import read_answer
from dlemu.results.kinds import Parts, catalogue_of
from dlemu.studies.compare.page import difference_rows
from dlemu.studies.together.run import TOGETHER, JobTogether, Together


def screen(answer: Together, folder: str) -> Screen:
    headline = answer.verdict or ("INCOMPLETE" if not answer.complete else "the jobs did not run alone")
    lines = [Said("answer", headline, tone="strong")]
    for number, one in enumerate(answer.jobs, start=1):
        cost = f": {answer.losses[number]}".replace("+-", "±") if number in answer.losses else ""
        lines.append(Said(f"job {number}", f"{one.title}{cost}"))
    title = f"{len(answer.jobs)} jobs on one storage: what does each cost the others?"
    return Screen(title=title, lines=lines, notes=answer.issues, folder=folder)


def sections(answer: Together, _: str) -> list[Section]:
    return [_table(one, number) for number, one in enumerate(answer.jobs, start=1)]


def _table(one: JobTogether, number: int) -> Table:
    """Return a table of a job's metrics, alone and together with the others."""
    title = f"Job {number}: {one.title}"
    measured = one.beside or one.alone
    if measured is None:
        return Table(title=title, columns=columns("metric"), rows=[])
    catalogue = catalogue_of(measured.figures.kind)
    notes = [f"others ran during {one.beside.overlap_percent:.0f} % of its time"] if one.beside else []
    if one.cost:
        head = columns("metric", "together", "alone", "change", "+-", right=range(1, 5), whole=range(5))
        rows = difference_rows(one.cost, catalogue)
        return Table(title=title, columns=head, rows=rows, notes=notes)
    rows = [
        (metric.label, value_with_interval(measured.figures.metrics[metric.name], metric.unit))
        for metric in catalogue.compared
        if metric.name in measured.figures.metrics
    ]
    return Table(title=title, columns=columns("metric", "together", right=(1,)), rows=rows, notes=notes)


PARTS = Parts(
    read=lambda folder: read_answer(folder, TOGETHER, Together),
    answer_type=Together,
    screen=screen,
    sections=sections,
)
