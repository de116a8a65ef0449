"""What a search, a sweep, or several runs side by side say, for the terminal and for their page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rich.console import Console

from dlemu.report.checkpoint_comparison import METRICS
from dlemu.report.comparison_report import with_width
from dlemu.report.page import Page, State, Text, Words, tiles
from dlemu.report.run_report import environment_of, environment_tables, facts_table
from dlemu.report.series import Point, RunSeries
from dlemu.report.table import Cell, Line, Table, Tone, columns, print_lines, print_table
from dlemu.report.units import count, duration, flat, interval, number, plain, short_names, verdict_word
from dlemu.results.checkpoint_summary import CheckpointSummary
from dlemu.results.summary import Mean
from dlemu.sizing.answers import CheckpointFigures, CountResult, RunFigures, SizeAnswer, SweepAnswer, SweepPoint

_SHOWN_HOSTS = 4
_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad"}
_SIZE_TILES = (
    ("accelerators fed", "max_accelerators", "", "the largest count shown to pass"),
    ("pass line", "threshold_percent", "%", "AU at which a count passes"),
    ("one more would take", "for_one_more.wanted_mb_per_second", "MB/s", "at the pass line"),
    ("most delivered", "for_one_more.most_delivered_mb_per_second", "MB/s", "in any trial"),
    ("read probe", "probe_mb_per_second", "MB/s", "before the first trial"),
    ("predicted", "predicted.max_accelerators", "", "from the read probe, by the model"),
    ("time to the answer", "seconds", "s", "all trials"),
    ("the naive way", "naive_seconds", "s", "every count at full length, nominal"),
)
_SHOWN_OF_CHECKPOINTS = {
    "checkpoint_gib": "size\nGiB",
    "write_slowest_gib_per_second": "write\nGiB/s",
    "write_slowest_seconds": "write\ns",
    "write_fsync_percent": "fsync\n%",
    "read_slowest_gib_per_second": "read\nGiB/s",
    "read_slowest_seconds": "read\ns",
    "read_from_storage_percent": "storage\n%",
}
"""Metrics of a run of checkpoints, and the heads of their columns on the terminal."""
_SWEEP_COLUMNS = (
    "total\ns",
    "au\n%",
    "sust.\n%",
    "credit\n%",
    "samples\n/s",
    "app\nMB/s",
    "device\nMB/s",
    "max\nMB/s",
    "read\nms",
)


# The terminal


def print_answer(answer: SizeAnswer, folder: str, console: Console) -> None:
    """Print the table of all counts of a search, and the answer."""
    print_table(_counts_table(answer), console)
    more = answer.for_one_more
    word = answer.outcome or verdict_word(answer.passed)
    tones: dict[str, Tone] = {"pass": "good", "fail": "bad"}
    tone = tones.get(word, "open")
    wanted = f"{more.accelerators} would take {more.wanted_mb_per_second:,.1f} MB/s"
    lines: list[Cell] = [
        *(f"- {sentence}" for sentence in answer.limited_by.evidence),
        *(Line(f"- {issue}", "caution") for issue in answer.issues),
        f"- {wanted}; the storage gave {answer.storage_mb_per_second:,.1f} at most",
        Line(answer.verdict, tone),
    ]
    if answer.at_least:
        lines.append(Line(f"{word.upper()}: {answer.max_accelerators} of {answer.at_least} wanted", tone))
    naive = f"every count up to the edge at full length would take {duration(answer.naive_seconds)}"
    lines.append(f"{count(len(answer.trials), 'trial')} took {duration(answer.seconds)}; {naive}")
    print_lines([*lines, f"results: {folder}"], console)


def _counts_table(answer: SizeAnswer) -> Table:
    def row(tried: CountResult) -> tuple[Cell, ...]:
        rates = [trial.app_mb_per_second for trial in answer.trials_of(tried.accelerators)]
        return (
            str(tried.accelerators),
            f"{tried.au_percent:.2f}",
            interval(tried.au_percent, tried.half_width_percent),
            *([_predicted(answer, tried.accelerators)] if answer.predicted else []),
            str(tried.trials),
            f"{sum(rates) / len(rates):,.1f}" if rates else "-",
            verdict_word(tried.passed, unknown="too close to tell"),
        )

    question = answer.question
    predicted = ["predicted"] if answer.predicted else []
    names = ("accelerators", "au %", "interval", *predicted, "trials", "MB/s", "verdict")
    head = columns(*names, right=range(len(names) - 1), whole=range(len(names)))
    title = f"{question.workload}: how many x {question.accelerator or 'accelerators'}"
    return Table(title=title, columns=head, rows=[row(tried) for tried in answer.counts])


def _predicted(answer: SizeAnswer, accelerators: int) -> str:
    count = answer.predicted.au(accelerators) if answer.predicted else None
    return "-" if count is None else f"{count.au_percent:.1f}"


def print_sweep(swept: SweepAnswer, folder: str, console: Console) -> None:
    """Print a sweep, a line a point. `-` stands for what the run's telemetry does not know."""
    print_table(_sweep_table(swept), console)
    failed = [point for point in swept.points if point.failure]
    print_lines([Line(f"{point.folder} failed: {point.failure}", "bad") for point in failed], console)
    print_lines([f"results: {folder}"], console)


def _sweep_table(swept: SweepAnswer) -> Table:
    axes = list(swept.points[0].settings)
    short = {axis: short_names(point.settings[axis] for point in swept.points) for axis in axes}
    saved = any(point.checkpoints for point in swept.points)
    numbers = list(_SHOWN_OF_CHECKPOINTS.values() if saved else _SWEEP_COLUMNS)
    words = ["write limited by", "read limited by"] if saved else ["verdict"]
    cells = _checkpoint_cells if saved else _training_cells
    names = [*(axis.split(".")[-1].replace("_", "\n", 1) for axis in axes), *numbers, *words]
    rows: list[tuple[Cell, ...]] = [
        (*(short[axis][point.settings[axis]] for axis in axes), *cells(point)) for point in swept.points
    ]
    head = columns(*names, right=range(len(names) - len(words)), whole=range(len(names)))
    return Table(columns=head, rows=rows, dense=True)


def _checkpoint_cells(point: SweepPoint) -> list[Cell]:
    if point.checkpoints is None:
        return [*["-"] * len(_SHOWN_OF_CHECKPOINTS), Line("failed", "bad"), "-"]
    return [*_checkpoint_row(point.checkpoints)]


def _checkpoint_row(figures: CheckpointFigures) -> Iterator[str]:
    for name in _SHOWN_OF_CHECKPOINTS:
        value = figures.metrics.get(name)
        # Rates are what is compared: they have their interval beside them.
        width = value.half_width if value and name.endswith("per_second") else None
        yield with_width(value.mean, width, METRICS[name][1]) if value else "-"
    yield figures.write_limited_by or "-"
    yield figures.read_limited_by or "-"


def _training_cells(point: SweepPoint) -> list[Cell]:
    figures = point.figures
    if figures is None:
        return [*["-"] * len(_SWEEP_COLUMNS), Line("failed", "bad")]
    return [
        _digits(figures.total_seconds, 1),
        _digits(figures.au_percent, 2),
        _digits(figures.au_sustained_percent, 2),
        _digits(figures.prefetch_credit_percent, 1),
        _digits(figures.samples_per_second, 2),
        _digits(figures.app_mb_per_second, 1),
        _digits(figures.device_mb_per_second, 1),
        _digits(figures.max_device_mb_per_second, 1),
        _digits(figures.mean_device_read_latency_ms, 2),
        _sweep_verdict(figures),
    ]


def _digits(figure: Mean | float | None, digits: int) -> str:
    value = figure.mean if isinstance(figure, Mean) else figure
    return "-" if value is None else f"{value:,.{digits}f}"


def _sweep_verdict(figures: RunFigures) -> Line:
    word, limit = verdict_word(figures.passed), figures.limited_by
    named = f"{word}: {limit.what}" if limit and word != "pass" else word
    return Line(named, _TONES.get(word, "open"))


# The page


def series_page(series: RunSeries, config: str) -> Page:
    """Return what stands on the page of several runs; `config` is the configuration of one of them as YAML."""
    state, verdict = _verdict(series)
    return Page(
        title=_title(series),
        lead=_lead(series),
        state=state,
        verdict=verdict,
        tiles=tiles(series.answer, _SIZE_TILES) if isinstance(series.answer, SizeAnswer) else [],
        words=list(_words(series.answer)),
        tables=list(_tables(series)),
        texts=[Text("Full configuration of one of the runs (config.yaml)", config)] if config else [],
        source=os.path.basename(os.path.abspath(series.folder)) if series.answer else series.folder,
    )


def _title(series: RunSeries) -> str:
    if isinstance(series.answer, SizeAnswer):
        question = series.answer.question
        what = " ".join(filter(None, [question.workload, question.accelerator]))
        return f"How many accelerators does this storage feed? {what}"
    lines = sorted({point.line for point in series.points})
    what = lines[0] if len(lines) == 1 else count(len(lines), "line")
    return f"Sweep: {what}" if series.answer else f"{count(len(series.points), 'run')}: {what}"


def _lead(series: RunSeries) -> str:
    if series.run is None:
        return ""
    summary = series.run.summary
    hosts = ", ".join(summary.hosts[:_SHOWN_HOSTS])
    if isinstance(summary, CheckpointSummary):
        where = f"Checkpoints in {summary.what.folder}"
    else:
        where = f"Dataset in {summary.dataset.data_folder}"
    return f"{summary.started_at}, on {hosts}. {where}."


def _verdict(series: RunSeries) -> tuple[State, tuple[str, str]]:
    """Return the state of the page, and the verdict's word with the rest of its line."""
    answer = series.answer
    if isinstance(answer, SizeAnswer):
        sentence = answer.verdict or "the search was interrupted"
        if not answer.complete:
            return "open", ("INCOMPLETE", f": {sentence}")
        if answer.at_least:
            sentence = f"{answer.max_accelerators} of {answer.at_least} wanted. {sentence}"
        word = answer.outcome or verdict_word(answer.passed)
        states: dict[str, State] = {"pass": "passed", "fail": "failed"}
        return states.get(word, "open"), (word.upper(), f": {sentence}")
    interrupted = " so far: the sweep was interrupted" if answer and not answer.complete else ""
    if answer and series.of_checkpoints:
        return "open", (f"{len(series.points)} of {len(answer.points)}", f" points completed{interrupted}")
    passed = sum(point.passed is True for point in series.points)
    return "open", (f"{passed} of {len(series.points)}", f" runs passed{interrupted}")


def _words(answer: SizeAnswer | SweepAnswer | None) -> Iterator[Words]:
    if isinstance(answer, SizeAnswer):
        yield from _size_words(answer)
    elif answer:
        failed = [f"{plain(point.settings)}: {point.failure}" for point in answer.points if point.failure]
        if failed:
            yield Words("Points that failed", failed)


def _size_words(answer: SizeAnswer) -> Iterator[Words]:
    limit = answer.limited_by
    title = f"The next count is limited by: {limit.what}"
    yield Words("No more accelerators were tried" if limit.what == "count" else title, limit.evidence)
    if answer.host_only:
        could = answer.host_only.storage_could_feed
        enough = f", enough for about {count(could, 'accelerator')}" if could is not None else ""
        given = f"It was seen to give {number(answer.storage_mb_per_second)} MB/s{enough}"
        sentence = f"{given}: use a host with more cores, or several."
        yield Words("The host gave out first, not the storage", [sentence])
    if answer.issues:
        yield Words("What to know about these numbers", answer.issues)


def _tables(series: RunSeries) -> Iterator[Table]:
    yield _checkpoints_table(series) if series.of_checkpoints else _points_table(series)
    if isinstance(series.answer, SizeAnswer):
        yield _trials_table(series.answer)
    if series.answer:
        yield facts_table(
            "The question", ((key.replace("_", " "), value) for key, value in flat(series.answer.question))
        )
    summary = series.run.summary if series.run is not None else None
    if isinstance(summary, CheckpointSummary):
        yield facts_table("What was measured, and how", flat(summary.what))
        yield from environment_of(summary.environment, "the checkpoints")
    elif summary is not None:
        yield facts_table("How it was measured", flat(summary.how))
        yield from environment_tables(summary)


def _points_table(series: RunSeries) -> Table:
    """Return a row a point; a column of figures that no point has is left out."""
    figures: dict[str, Sequence[float | str | None]] = {
        "AU, %": [point.au_percent for point in series.points],
        "sustained AU, %": [point.au_sustained_percent for point in series.points],
        "prefetch credit, %": [point.prefetch_credit_percent for point in series.points],
        "interval, %": [
            None if point.half_width_percent is None else interval(point.au_percent, point.half_width_percent)
            for point in series.points
        ],
        "samples/s": [point.samples_per_second for point in series.points],
        "loader MB/s": [point.app_mb_per_second for point in series.points],
        "device MB/s": [point.device_mb_per_second for point in series.points],
        "largest device MB/s": [point.max_device_mb_per_second for point in series.points],
        "device latency, ms": [point.mean_device_read_latency_ms for point in series.points],
        "total s": [point.total_seconds for point in series.points],
    }
    known = {name: values for name, values in figures.items() if any(value is not None for value in values)}
    sized = isinstance(series.answer, SizeAnswer)
    names = ("accelerator type" if sized else "run", "accelerators", *known, "passed", "limited by")
    rows = [
        (
            _point_name(series, point),
            str(point.accelerators),
            *(value if isinstance(value := values[place], str) else number(value) for values in known.values()),
            "open" if point.passed is None else plain(point.passed),
            point.limited_by or "-",
        )
        for place, point in enumerate(series.points)
    ]
    head = columns(*names, right=range(1, len(known) + 2))
    return Table(title="Counts" if sized else "Runs", columns=head, rows=rows)


def _checkpoints_table(series: RunSeries) -> Table:
    """Return a row a point of checkpoints."""
    rows = [
        (_point_name(series, point), str(point.accelerators), *_checkpoint_row(point.checkpoints))
        for point in series.points
        if point.checkpoints
    ]
    shown = [", ".join(METRICS[name]) for name in _SHOWN_OF_CHECKPOINTS]
    head = columns("run", "ranks", *shown, "write limited by", "read limited by", right=range(1, len(shown) + 2))
    return Table(title="Points", columns=head, rows=rows)


def _point_name(series: RunSeries, point: Point) -> str:
    settings = [f"{key.rpartition('.')[2]}={series.shown(point, key)}" for key in point.settings if key != "ranks"]
    return ", ".join([point.line, *settings])


def _trials_table(answer: SizeAnswer) -> Table:
    rows = [
        (
            str(trial.accelerators),
            number(trial.au_percent),
            interval(trial.au_percent, trial.half_width_percent),
            number(trial.app_mb_per_second),
            number(trial.device_mb_per_second),
            number(trial.seconds),
            plain(trial.settled),
        )
        for trial in answer.trials
    ]
    head = columns(
        *("accelerators", "AU, %", "interval", "loader MB/s", "device MB/s", "seconds", "settled"), right=range(6)
    )
    return Table(title="Trials, in order", columns=head, rows=rows, folded=True)
