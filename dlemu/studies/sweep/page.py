"""A sweep on the terminal and on its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dlemu.config.overrides import named
from dlemu.metrics.catalogue import RUN, Catalogue, Metric
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Cell, Line, Table, Tone, columns, listing
from dlemu.report.units import number, short_names, verdict_word, with_interval
from dlemu.results.figures import JobFigures, Value
from dlemu.results.kinds import Parts, catalogue_of
from dlemu.results.wording import at_scale
from dlemu.studies.answers import SweepAnswer, SweepPoint
from dlemu.studies.conditions import background

_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad"}


def screen(answer: SweepAnswer, folder: str) -> Screen:
    """Return the first screen: how many runs passed, the two runs at the edge of a search, failures, and all runs."""
    completed = [point.figures for point in answer.points if point.figures]
    failures = [(named(point.settings), point.failure) for point in answer.points if point.failure]
    notes = [f"{settings} failed: {failure.splitlines()[0]}" for settings, failure in failures]
    text = f"{len(completed)} of {len(answer.points)} completed"
    if completed and catalogue_of(completed[0].kind).judged:
        text = f"{sum(figures.passed is True for figures in completed)} of {len(answer.points)} passed"
        if failures:
            text += f", {len(failures)} did not complete"
    if not answer.complete:
        text += " so far: the sweep was interrupted"
    lines = [Said("runs", text, tone="open")]
    if answer.question.most_of:
        for label, point in zip(("passes", "fails"), answer.edge, strict=True):
            if point is not None and point.figures is not None:
                lines.append(Said(label, f"{named(point.settings)}: {point.figures.verdict}"))
    title = "Sweep: " + ", ".join(sorted({figures.title for figures in completed}))
    return Screen(title=title, lines=lines, notes=notes, folder=folder, table=points_table(answer.points))


def sections(answer: SweepAnswer, folder: str) -> Iterator[Table]:
    yield points_table(answer.points)
    if failed := [f"{named(point.settings)}: {point.failure}" for point in answer.points if point.failure]:
        yield listing("What did not complete", failed)
    yield from background(folder, [point.folder for point in answer.points])


def _charts(answer: SweepAnswer, _: str) -> Iterator[tuple[str, Any]]:
    from dlemu.studies.figures import Point, charts

    return charts(Point(point.figures.title, point.settings, point.figures) for point in answer.points if point.figures)


def points_table(points: Sequence[SweepPoint], title: str = "") -> Table:
    """Return a table with a row for each run: its values of the varied settings, its metrics, its verdict or limits."""
    completed = [point.figures for point in points if point.figures]
    catalogue = catalogue_of(completed[0].kind) if completed else Catalogue(metrics=())
    keys = list(points[0].settings)
    short_values = {key: short_names(point.settings[key] for point in points) for key in keys}
    result_heads = ["verdict"] if catalogue.judged else [catalogue.limited_by(phase) for phase in catalogue.phases]
    metrics = [metric for metric in catalogue.in_sweeps if any(metric.name in run.metrics for run in completed)]
    heads = [key.rpartition(".")[2].replace("_", "\n", 1) for key in keys]
    heads += [*(metric.head for metric in metrics), *result_heads]
    table_columns = columns(*heads, right=range(len(heads) - len(result_heads)), whole=range(len(heads)))
    rows: list[list[Cell]] = []
    for point in points:
        values = point.figures.metrics if point.figures else {}
        setting_cells = [short_values[key][point.settings[key]] for key in keys]
        metric_cells = [_metric_cell(metric, values.get(metric.name)) for metric in metrics]
        rows.append([*setting_cells, *metric_cells, *_result_cells(point.figures, catalogue)])
    scales = sorted(filter(None, {at_scale(run.sample_divisor) for run in completed}))
    notes = [f"{catalogue.rank}s{phrase}" for phrase in scales]
    return Table(title=title, columns=table_columns, rows=rows, notes=notes, dense=True)


def _metric_cell(metric: Metric, value: Value | None) -> str:
    if value is None:
        return "-"
    if metric.digits is not None:
        return f"{value.mean:,.{metric.digits}f}"
    return with_interval(value, metric.unit) if metric.has_interval else number(value.mean)


def _result_cells(figures: JobFigures | None, catalogue: Catalogue) -> list[Cell]:
    """Return the verdict or, for a kind of job without verdicts, the limit of each phase; `failed` without figures."""
    if figures is None:
        other_phases = 0 if catalogue.judged else len(catalogue.phases) - 1
        return [Line("failed", "bad"), *["-"] * other_phases]
    if not catalogue.judged:
        return [figures.limited_by.get(phase) or "-" for phase in catalogue.phases]
    word, limit = verdict_word(figures.passed), figures.limited_by.get(RUN)
    text = word if word == "pass" or limit in (None, "", "nothing") else f"{word}: {limit}"
    return [Line(text, _TONES.get(word, "open"))]


PARTS = Parts(answer_type=SweepAnswer, screen=screen, sections=sections, charts=_charts)
