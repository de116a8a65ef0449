"""A search, a sweep, or several runs side by side, on the terminal and on their page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dlemu.metrics.catalogue import RUN, Catalogue, Metric
from dlemu.report.environment import environment_of, facts_table
from dlemu.report.screen import Said, Screen
from dlemu.report.series import Point, RunSeries
from dlemu.report.table import Cell, Line, Section, Table, Words, columns
from dlemu.report.units import (
    flat,
    interval,
    number,
    plain,
    short_names,
    value_with_interval,
    verdict_word,
    with_interval,
)
from dlemu.results.compared import Conditions
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import catalogue_of, kind_named
from dlemu.results.measured import MeasuredRun
from dlemu.results.parts import Environment
from dlemu.results.wording import count, scaled
from dlemu.runner.run_list import DIGEST
from dlemu.studies.answers import CountResult, SizeAnswer, SweepAnswer
from dlemu.studies.size.screen import TONES

if TYPE_CHECKING:
    from dlemu.report.figure_base import Canvas, Figure

_SHOWN_HOSTS = 4


def _counts_table(answer: SizeAnswer) -> Table:
    def row(tried: CountResult) -> tuple[Cell, ...]:
        rates = [trial.app_mb_per_second for trial in answer.trials_of(tried.accelerators)]
        expected = answer.predicted and answer.predicted.au(tried.accelerators)
        predicted = [f"{expected.au_sustained_percent:.1f}" if expected else "-"] if answer.predicted else []
        return (
            str(tried.accelerators),
            f"{tried.au_sustained_percent:.2f}",
            interval(tried.au_sustained_percent, tried.half_width_percent),
            *predicted,
            str(tried.trials),
            number(sum(rates) / len(rates) if rates else None),
            verdict_word(tried.passed, unknown="too close to call"),
        )

    question = answer.question
    predicted = ["predicted"] if answer.predicted else []
    names = ("accelerators", "AU %", "interval", *predicted, "trials", "MB/s", "verdict")
    head = columns(*names, right=range(len(names) - 1), whole=range(len(names)))
    kind = f"x {question.accelerator}" if question.accelerator else "accelerators"
    title = f"{question.workload}: how many {kind}{answer.scaled}"
    notes = ["au: of the steady part of the trials; MB/s: of whole trials, their start and end included"]
    return Table(title=title, columns=head, rows=[row(tried) for tried in answer.counts], notes=notes)


def _sweep_table(swept: SweepAnswer) -> Table:
    axes = list(swept.points[0].settings)
    short = {axis: short_names(point.settings[axis] for point in swept.points) for axis in axes}
    kinds = [point.figures.kind for point in swept.points if point.figures]
    catalogue = catalogue_of(kinds[0]) if kinds else Catalogue(metrics=())
    words = ["verdict"] if catalogue.phases == (RUN,) else [catalogue.limited_by(phase) for phase in catalogue.phases]
    known = {name for point in swept.points if point.figures for name in point.figures.metrics}
    shown = [metric for metric in catalogue.in_sweeps if metric.name in known]
    numbers = [metric.head for metric in shown]
    names = [*(axis.split(".")[-1].replace("_", "\n", 1) for axis in axes), *numbers, *words]
    rows: list[tuple[Cell, ...]] = [
        (*(short[axis][point.settings[axis]] for axis in axes), *_sweep_cells(point.figures, catalogue, shown))
        for point in swept.points
    ]
    head = columns(*names, right=range(len(names) - len(words)), whole=range(len(names)))
    divisors = {point.figures.sample_divisor for point in swept.points if point.figures}
    small = [f"{catalogue.rank}s{phrase}" for phrase in sorted(filter(None, map(scaled, divisors)))]
    return Table(columns=head, rows=rows, notes=small, dense=True)


def _sweep_cells(figures: JobFigures | None, catalogue: Catalogue, shown: Sequence[Metric]) -> Iterator[Cell]:
    for metric in shown:
        value = figures.metrics.get(metric.name) if figures else None
        if value is None:
            yield "-"
        elif metric.digits is not None:
            yield f"{value.mean:,.{metric.digits}f}"
        else:
            yield with_interval(value.mean, value.half_width if metric.has_interval else None, metric.unit)
    if figures is None:
        yield Line("failed", "bad")
        yield from ["-"] * (len(catalogue.phases) - 1)
    elif catalogue.phases == (RUN,):
        yield _sweep_verdict(figures)
    else:
        yield from (figures.limited_by.get(phase) or "-" for phase in catalogue.phases)


def _sweep_verdict(figures: JobFigures) -> Line:
    word, limit = verdict_word(figures.passed), figures.limited_by.get(RUN)
    named = f"{word}: {limit}" if limit not in (None, "", "nothing") and word != "pass" else word
    return Line(named, TONES.get(word, "open"))


def series_screen(series: RunSeries) -> Screen:
    """Return what is said first of several runs, or of a sweep."""
    answer = series.answer
    lines = sorted({point.line for point in series.points})
    what = lines[0] if len(lines) == 1 else count(len(lines), "line")
    title = f"Sweep: {what}" if answer else f"{count(len(series.points), 'run')}: {what}"
    interrupted = " so far: the sweep was interrupted" if answer and not answer.complete else ""
    failed = [point for point in answer.points if point.failure] if answer else []
    if answer and not series.catalogue.judged:
        said = Said("points", f"{len(series.points)} of {len(answer.points)} completed{interrupted}", tone="open")
    else:
        passed = sum(point.figures.passed is True for point in series.points)
        without = f", {len(failed)} did not complete" if failed else ""
        said = Said("runs", f"{passed} of {len(series.points) + len(failed)} passed{without}{interrupted}", tone="open")
    notes = [f"{plain(point.settings)} failed: {point.failure}" for point in failed]
    table = _sweep_table(answer) if isinstance(answer, SweepAnswer) else None
    return Screen(title=title, lines=[said], notes=notes, folder=series.folder, table=table)


def series_sections(series: RunSeries) -> Iterator[Section]:
    """Yield what is said of several runs below their first screen."""
    if isinstance(series.answer, SizeAnswer):
        yield from _size_words(series.answer)
        yield _counts_table(series.answer)
    elif isinstance(series.answer, SweepAnswer):
        yield _sweep_table(series.answer)
    yield from _tables(series)


def series_charts(series: RunSeries, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of several runs."""
    from dlemu.studies.series.figures import figures

    return figures(series, canvas)


def _conditions(run: MeasuredRun) -> Conditions:
    """Return where and on what a run was measured, as its kind of job says."""
    return kind_named(run.facts.kind).load_job().conditions(run.summary)


def _size_words(answer: SizeAnswer) -> Iterator[Words]:
    limit = answer.limited_by
    title = f"The next count is limited by: {limit.name}"
    yield Words("No more accelerators were tried" if limit.what == "count" else title, limit.evidence)
    if answer.host_only:
        could = answer.host_only.storage_could_feed
        enough = "" if could is None else f", enough for about {count(could, 'accelerator')}{answer.scaled}"
        given = f"It delivered at least {number(answer.storage_mb_per_second)} MB/s{enough}"
        sentence = f"{given}: use a host with more cores or without other programs, or several hosts."
        yield Words("The host reached its limit first, not the storage", [sentence])


def _tables(series: RunSeries) -> Iterator[Table]:
    yield _points_table(series)
    if isinstance(series.answer, SizeAnswer):
        yield _trials_table(series.answer)
    if series.answer:
        yield facts_table(
            "The question",
            ((key.replace("_", " "), value) for key, value in flat(series.answer.question) if key != DIGEST),
        )
    if series.run is not None:
        run = _conditions(series.run)
        yield facts_table("How it was measured", flat(run.facts | run.work | run.how))
        yield from environment_of(Environment(hosts=run.hosts, storage=run.storage))


def _points_table(series: RunSeries) -> Table:
    """Return a table with one row per point; columns that no point has a value for are left out."""
    catalogue, found = series.catalogue, [point.figures for point in series.points]
    shown = [metric for metric in catalogue.in_sweeps if any(metric.name in figures.metrics for figures in found)]
    sized = isinstance(series.answer, SizeAnswer)
    judged = ["passed"] if catalogue.judged else []
    limits = [catalogue.limited_by(phase) for phase in catalogue.phases]
    names = (
        "accelerator type" if sized else "run",
        series.counted,
        *(metric.label for metric in shown),
        *judged,
        *limits,
    )
    rows = [
        (
            _point_name(series, point),
            str(point.ranks),
            *(value_with_interval(point.figures.metrics.get(metric.name), metric.unit) for metric in shown),
            *(["open" if point.figures.passed is None else plain(point.figures.passed)] if judged else []),
            *(point.figures.limited_by.get(phase) or "-" for phase in catalogue.phases),
        )
        for point in series.points
    ]
    head = columns(*names, right=range(1, len(shown) + 2))
    return Table(title="Counts" if sized else "Points" if not judged else "Runs", columns=head, rows=rows)


def _point_name(series: RunSeries, point: Point) -> str:
    settings = [f"{key.rpartition('.')[2]}={series.shown(point, key)}" for key in point.settings if key != "ranks"]
    return ", ".join([point.line, *settings])


def _trials_table(answer: SizeAnswer) -> Table:
    rows = [
        (
            str(trial.accelerators),
            number(trial.au_sustained_percent),
            interval(trial.au_sustained_percent, trial.half_width_percent),
            number(trial.app_mb_per_second),
            number(trial.device_mb_per_second),
            number(trial.seconds),
            plain(trial.settled),
        )
        for trial in answer.trials
    ]
    names = ("accelerators", "AU, %", "interval", "loader MB/s", "device MB/s", "seconds", "settled")
    head = columns(*names, right=range(len(names) - 1))
    return Table(title="Trials, in order", columns=head, rows=rows, folded=True)
