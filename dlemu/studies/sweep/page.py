"""A sweep on the terminal and on its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dlemu.config.overrides import named
from dlemu.metrics.catalogue import RUN, Catalogue, Metric
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Cell, Line, Section, Table, Tone, Words, columns
from dlemu.report.units import number, short_names, verdict_word, with_interval
from dlemu.results.answer_files import read_answer
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import Parts, catalogue_of
from dlemu.results.wording import scaled
from dlemu.studies.answers import SWEEP, SweepAnswer, SweepPoint
from dlemu.studies.conditions import background

_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad"}


def screen(answer: SweepAnswer, folder: str) -> Screen:
    """Return what is said first of a sweep."""
    done = [point.figures for point in answer.points if point.figures]
    failed = [point for point in answer.points if point.failure]
    notes = [f"{named(point.settings)} failed: {(point.failure or '').splitlines()[0]}" for point in failed]
    catalogue = _catalogue(done)
    if catalogue.judged:
        passed = sum(figures.passed is True for figures in done)
        counted = f"{passed} of {len(answer.points)} passed" + f", {len(failed)} did not complete" * bool(failed)
    else:
        counted = f"{len(done)} of {len(answer.points)} completed"
    interrupted = "" if answer.complete else " so far: the sweep was interrupted"
    lines = [Said("runs", counted + interrupted, tone="open")]
    for label, edge in zip(("passes", "fails"), answer.edge if answer.question.most_of else (), strict=False):
        if edge is not None and edge.figures is not None:
            lines.append(Said(label, f"{named(edge.settings)}: {edge.figures.verdict}"))
    title = "Sweep: " + ", ".join(sorted({figures.title for figures in done}))
    return Screen(title=title, lines=lines, notes=notes, folder=folder, table=points_table(answer.points))


def sections(answer: SweepAnswer, folder: str) -> Iterator[Section]:
    """Yield what follows on the page: the points, why some failed, and what was run."""
    yield points_table(answer.points)
    if failed := [f"{named(point.settings)}: {point.failure}" for point in answer.points if point.failure]:
        yield Words("What did not complete", failed)
    yield from background(answer.question, folder, [point.folder for point in answer.points])


def _charts(answer: SweepAnswer, _: str) -> Iterator[tuple[str, Any]]:
    from dlemu.studies.figures import Point, charts

    done = ((point.settings, point.figures) for point in answer.points if point.figures)
    return charts(Point(figures.title, settings, figures) for settings, figures in done)


def _catalogue(done: Sequence[JobFigures]) -> Catalogue:
    return catalogue_of(done[0].kind) if done else Catalogue(metrics=())


def points_table(points: Sequence[SweepPoint], title: str = "") -> Table:
    """Return a table with a row for each run: the settings that vary, its metrics, its verdict or limits."""
    done = [point.figures for point in points if point.figures]
    catalogue = _catalogue(done)
    axes = list(points[0].settings)
    short = {axis: short_names(point.settings[axis] for point in points) for axis in axes}
    words = ["verdict"] if catalogue.judged else [catalogue.limited_by(phase) for phase in catalogue.phases]
    shown = [metric for metric in catalogue.in_sweeps if any(metric.name in figures.metrics for figures in done)]
    heads = [axis.split(".")[-1].replace("_", "\n", 1) for axis in axes]
    names = [*heads, *(metric.head for metric in shown), *words]
    rows: list[tuple[Cell, ...]] = [
        (*(short[axis][point.settings[axis]] for axis in axes), *_cells(point.figures, catalogue, shown))
        for point in points
    ]
    head = columns(*names, right=range(len(names) - len(words)), whole=range(len(names)))
    small = sorted(filter(None, {scaled(figures.sample_divisor) for figures in done}))
    notes = [f"{catalogue.rank}s{phrase}" for phrase in small]
    return Table(title=title, columns=head, rows=rows, notes=notes, dense=True)


def _cells(figures: JobFigures | None, catalogue: Catalogue, shown: Sequence[Metric]) -> Iterator[Cell]:
    if figures is None:
        yield from ["-"] * len(shown)
        yield Line("failed", "bad")
        yield from ["-"] * (len(catalogue.phases) - 1)
        return
    for metric in shown:
        value = figures.metrics.get(metric.name)
        if value is None:
            yield "-"
        elif metric.digits is not None:
            yield f"{value.mean:,.{metric.digits}f}"
        else:
            yield with_interval(value, metric.unit) if metric.has_interval else number(value.mean)
    if catalogue.judged:
        word, limit = verdict_word(figures.passed), figures.limited_by.get(RUN)
        named = f"{word}: {limit}" if limit not in (None, "", "nothing") and word != "pass" else word
        yield Line(named, _TONES.get(word, "open"))
    else:
        yield from (figures.limited_by.get(phase) or "-" for phase in catalogue.phases)


PARTS = Parts(
    read=lambda folder: read_answer(folder, SWEEP, SweepAnswer),
    answer_type=SweepAnswer,
    screen=screen,
    sections=sections,
    charts=_charts,
)
