"""What may be compared: a run, a sweep or a search, read from its folder and brought to one shape."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from datagen.errors import UserError
from dlemu.config.points import DATA_FOLDER
from dlemu.emulator.environment import HostFacts
from dlemu.metrics.t_interval import half_width
from dlemu.results.answer_files import read_answer
from dlemu.results.folder import holds_run, read_run, read_summary
from dlemu.results.run import Run
from dlemu.results.summary import Mean, ReadSettings, Summary
from dlemu.sizing.answers import (
    SIZE,
    SWEEP,
    ComparedCount,
    Conditions,
    CountResult,
    RunFigures,
    SizeAnswer,
    SweepAnswer,
    Value,
)

CONFIDENCE = 0.95

METRICS = (
    "total_seconds",
    "au_percent",
    "au_sustained_percent",
    "prefetch_credit_percent",
    "au_rules_percent",
    "samples_per_second",
    "app_mb_per_second",
    "device_mb_per_second",
    "max_device_mb_per_second",
    "mean_device_read_latency_ms",
    "time_to_first_batch_seconds",
)
"""What is compared: fields of RunFigures, in the order in which they are shown."""

Settings = tuple[tuple[str, str], ...]
"""Key and value of what was set otherwise in each run, by key."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One storage: its name, the figures of its runs by what was set, and the count that a search found."""

    name: str
    workload: str = ""
    runs: Mapping[Settings, RunFigures] = field(default_factory=dict)
    """None of a search."""
    accelerators: int | None = None
    """The most that are fed: of a search, or the largest passing count among the runs; None when none passed."""
    gb_per_second: float | None = None
    """What it delivered to them, 1e9 bytes/s."""
    counts: tuple[ComparedCount, ...] = ()
    """What was measured of each count of accelerators."""
    about: Conditions | None = None
    """Where it was measured, None when no run is there any more."""
    warnings: tuple[str, ...] = ()
    """What a reader of its numbers must know."""


Foreign = Callable[[str], Side]
"""Reads the folder of a run that is not dlemu's; raises UserError when it is nothing that it knows."""


def read_sides(folders: Sequence[str], foreign: Foreign | None = None) -> tuple[Side, Side]:
    """Return the two storages that the folders hold: of two folders, or of one of a sweep over two drives.

    Raises UserError when there are not two.
    """
    sides = [side for folder in folders for side in read_side(folder, foreign)]
    if len(sides) != 2:
        raise UserError(
            f"{' '.join(folders)}: found {len(sides)} storages ({', '.join(side.name for side in sides)}), wanted two: "
            "two folders of runs, sweeps or searches, or one of a sweep over two drives"
        )
    return sides[0], sides[1]


def read_side(folder: str, foreign: Foreign | None = None) -> list[Side]:
    """Return what a folder holds: one storage, or one for each drive of a sweep over drives.

    A folder that is not dlemu's is read by `foreign`. Raises UserError for a folder that can't be compared.
    """
    if (swept := read_answer(folder, SWEEP, SweepAnswer)) is not None:
        return _of_sweep(folder, swept)
    if (sized := read_answer(folder, SIZE, SizeAnswer)) is not None:
        return [_of_size(folder, sized)]
    if holds_run(folder):
        run = read_run(folder)
        return [side_of_runs(folder, {(): run_figures(run)}, [run.summary])]
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is no folder: wanted that of a run, sweep or size")
    if foreign is not None:
        return [foreign(folder)]
    raise UserError(
        f"{folder} holds no summary.json of dlemu's, {SWEEP} or {SIZE}: wanted the folder of a run, sweep or size"
    )


def side_of_runs(name: str, runs: Mapping[Settings, RunFigures], summaries: Sequence[Summary] = ()) -> Side:
    """Return a storage by what its runs showed; `summaries` are those of the runs that are still there."""
    accelerators = max((figures.ranks for figures in runs.values() if figures.passed), default=None)
    shown = [figures for figures in runs.values() if figures.ranks == (accelerators or figures.ranks)]
    rates = [figures.app_mb_per_second.mean for figures in shown if figures.app_mb_per_second]
    known = [rate for rate in rates if rate is not None]
    return Side(
        name=name,
        workload=next(iter(runs.values())).workload,
        runs=runs,
        accelerators=accelerators,
        gb_per_second=max(known) / 1e3 if known else None,
        counts=tuple(_count_of_run(settings, figures) for settings, figures in runs.items()),
        about=_conditions(summaries),
        warnings=_warnings(summaries),
    )


def _of_sweep(folder: str, swept: SweepAnswer) -> list[Side]:
    if any(point.checkpoints for point in swept.points):
        raise UserError(
            f"{folder} is a sweep of checkpoints: wanted two of its points, as in `dlemu compare {folder}/point-01 "
            f"{folder}/point-02`"
        )
    drives: dict[str, dict[Settings, RunFigures]] = {}
    run_folders: dict[str, list[str]] = {}
    for point in swept.points:
        if point.figures is None:
            continue
        settings = dict(point.settings)
        drive = settings.pop(DATA_FOLDER, folder)
        drives.setdefault(drive, {})[tuple(sorted(settings.items()))] = point.figures
        run_folders.setdefault(drive, []).append(os.path.join(folder, point.folder))
    if not drives:
        raise UserError(f"no point of {folder} has completed; nothing can be compared")
    return [side_of_runs(drive, runs, _summaries(run_folders[drive])) for drive, runs in drives.items()]


def _of_size(folder: str, sized: SizeAnswer) -> Side:
    rates = [trial.app_mb_per_second for trial in sized.trials_of(sized.max_accelerators)]
    return Side(
        name=folder,
        workload=sized.question.workload,
        accelerators=sized.max_accelerators,
        gb_per_second=max(rates) / 1e3 if rates else None,
        counts=tuple(_count_of_search(count, sized) for count in sized.counts),
        about=_conditions(_summaries(os.path.join(folder, trial.folder) for trial in sized.trials)),
        warnings=sized.issues,
    )


def _summaries(folders: Iterable[str]) -> list[Summary]:
    """Return the summaries of the runs that are still there."""
    return [read_summary(folder) for folder in folders if holds_run(folder)]


# figures


def run_figures(run: Run) -> RunFigures:
    """Return what is compared of a run."""
    summary, metrics = run.summary, run.summary.metrics
    return RunFigures(
        workload=summary.workload,
        accelerator=summary.accelerator,
        ranks=summary.ranks,
        epochs=metrics.epochs,
        passed=summary.passed,
        verdict=summary.verdict,
        limited_by=summary.limited_by,
        total_seconds=metrics.total_seconds,
        training_seconds=metrics.training_seconds,
        au_percent=_without_spread(metrics.au_percent),
        au_sustained_percent=metrics.au_sustained_percent,
        prefetch_credit_percent=metrics.prefetch_credit_percent,
        au_rules_percent=_without_spread(metrics.au_rules_percent),
        samples_per_second=_without_spread(metrics.samples_per_second),
        app_mb_per_second=_without_spread(metrics.app_mb_per_second),
        device_mb_per_second=_without_spread(metrics.device_mb_per_second),
        time_to_first_batch_seconds=_without_spread(metrics.time_to_first_batch_seconds),
        ceiling_au_percent=metrics.ceiling_au_percent,
        au_threshold_percent=metrics.au_threshold_percent,
        max_device_mb_per_second=max_device_mb_per_second(run),
        mean_device_read_latency_ms=mean_device_read_latency_ms(run),
    )


def _without_spread(figure: Mean | None) -> Mean | None:
    """Return a figure without its spreads over ranks and epochs."""
    return None if figure is None else Mean(mean=figure.mean, per_epoch=figure.per_epoch)


def max_device_mb_per_second(run: Run) -> float | None:
    """Return the most that the counted devices delivered in one interval; those read at one moment are added up.

    None where no device is counted (`counted`, docs/telemetry.md).
    """
    totals: dict[float, float] = {}
    for (_, _, _, seconds), rate in _readings(run, "read_mb_per_second").items():
        totals[seconds] = totals.get(seconds, 0.0) + rate
    return max(totals.values(), default=None)


def mean_device_read_latency_ms(run: Run) -> float | None:
    """Return the mean over the reads of the counted devices; None where no device is counted, or none was read."""
    reads, latencies = _readings(run, "reads_per_second"), _readings(run, "mean_read_latency_ms")
    served = [key for key, latency in latencies.items() if reads.get(key, 0) > 0 and math.isfinite(latency)]
    if not served:
        return None
    return float(np.average([latencies[key] for key in served], weights=[reads[key] for key in served]))


def _readings(run: Run, metric: str) -> dict[tuple[str, str, str, float], float]:
    """Return host, probe, source and seconds -> value, of counted devices."""
    telemetry = run.summary.telemetry
    probes = {device.probe for device in telemetry.devices if device.counted} if telemetry is not None else set()
    return {
        (series.host, series.probe, series.source, float(seconds)): float(value)
        for probe in probes
        for series in run.device_series(probe, metric)
        for seconds, value in zip(series.seconds, series.values, strict=True)
    }


def value_of(figures: RunFigures, metric: str) -> Value | None:
    """Return a metric of a run. The repetitions are its epochs; the total time has the spread of the epochs' rates."""
    figure: Mean | float | None = getattr(figures, metric)
    if figure is None:
        return None
    if isinstance(figure, Mean):
        return None if figure.mean is None else Value(figure.mean, _half_width(figure))
    rate = figures.samples_per_second
    if metric != "total_seconds" or rate is None:
        return Value(figure, None)
    width = _half_width(rate)
    return Value(figure, None if width is None or not rate.mean else figure * width / rate.mean)


def _half_width(figure: Mean) -> float | None:
    return half_width_of([value for value in figure.per_epoch if value is not None])


def half_width_of(values: Sequence[float]) -> float | None:
    """Return the half width of the 95 % interval of repetitions' mean; None of fewer than three.

    Of two, Student's t makes 6 times their difference: an interval that says nothing, and reaches beyond all sense.
    """
    if len(values) < 3:
        return None
    return half_width(float(np.std(values, ddof=1)), len(values), CONFIDENCE)


def _count_of_run(settings: Settings, figures: RunFigures) -> ComparedCount:
    return ComparedCount(
        settings=dict(settings),
        accelerators=figures.ranks,
        passed=figures.passed,
        limited_by=figures.limited_by.what if figures.limited_by else None,
        threshold_percent=figures.au_threshold_percent,
        ceiling_au_percent=figures.ceiling_au_percent,
        metrics={metric: value for metric in METRICS if (value := value_of(figures, metric))},
    )


def _count_of_search(count: CountResult, sized: SizeAnswer) -> ComparedCount:
    trials = sized.trials_of(count.accelerators)
    rates = {
        "samples_per_second": [trial.samples_per_second for trial in trials],
        "app_mb_per_second": [trial.app_mb_per_second for trial in trials],
        "device_mb_per_second": [t.device_mb_per_second for t in trials if t.device_mb_per_second is not None],
    }
    means = {metric: Value(sum(values) / len(values), None) for metric, values in rates.items() if values}
    limit = trials[-1].limited_by if trials else None
    return ComparedCount(
        accelerators=count.accelerators,
        passed=count.passed,
        limited_by=limit.what if limit else None,
        threshold_percent=sized.threshold_percent,
        ceiling_au_percent=trials[0].ceiling_au_percent if trials else None,
        metrics={"au_percent": Value(count.au_percent, count.half_width_percent)} | means,
    )


# what beside the storage differs

_HOST_FACTS = ("processor", "cpu_usable", "memory_bytes", "kernel", "dlemu", "packages")
"""Facts of a host that measure storage differently when they differ."""
_DATASET_FACTS = ("format", "num_files_train", "num_samples_per_file")


def _conditions(summaries: Sequence[Summary]) -> Conditions | None:
    """Return what the first run says of the conditions; None when there is none."""
    if not summaries:
        return None
    first = summaries[0]
    return Conditions(
        started_at=first.started_at,
        hosts=first.environment.hosts,
        storage=first.environment.storage,
        devices=tuple(device for device in first.telemetry.devices if device.counted) if first.telemetry else (),
        dataset=first.dataset,
        how=first.how,
    )


def _warnings(summaries: Sequence[Summary]) -> tuple[str, ...]:
    """Return what the runs warn of concerning the page cache, each sentence once."""
    sentences = (
        f"with {summary.ranks} accelerator{'s' * (summary.ranks != 1)} {summary.page_cache.warning}"
        for summary in summaries
        if summary.page_cache and summary.page_cache.warning
    )
    return tuple(dict.fromkeys(sentences))


def issues_between(a: Side, b: Side) -> Iterator[str]:
    """Yield a sentence for whatever makes the difference more than the storage's, and what each side warns of."""
    if a.workload != b.workload:
        yield f"A ran {a.workload} and B {b.workload}: the difference is not the storage's alone"
    if a.about is not None and b.about is not None:
        yield from differing_hosts(a.about.hosts, b.about.hosts)
        yield from _differing_facts(a.about, b.about)
    yield from (f"the datasets differ: {words}" for words in differing_datasets(a, b))
    for name, side in (("A", a), ("B", b)):
        yield from (f"{name}: {warning}" for warning in side.warnings)


def differing_datasets(a: Side, b: Side) -> list[str]:
    """Return in what the datasets of two sides differ, as phrases; nothing where one of them is not known."""
    if a.about is None or b.about is None:
        return []
    values = [(key, getattr(a.about.dataset, key), getattr(b.about.dataset, key)) for key in _DATASET_FACTS]
    return [f"{key} is {of_a} for A and {of_b} for B" for key, of_a, of_b in values if of_a != of_b]


def differing_hosts(a: Sequence[HostFacts], b: Sequence[HostFacts]) -> Iterator[str]:
    """Yield a sentence for each way in which the hosts of two sides differ."""
    names = [sorted(host.host for host in hosts) for hosts in (a, b)]
    if names[0] != names[1]:
        hosts = f"A was measured on {_listed(names[0])} and B on {_listed(names[1])}"
        yield f"{hosts}: the difference is not the storage's alone"
    for key in _HOST_FACTS:
        facts = [sorted({_plain(getattr(host, key)) for host in hosts}) for hosts in (a, b)]
        if facts[0] != facts[1]:
            yield f"the hosts' {key} was {_listed(facts[0])} for A and {_listed(facts[1])} for B"


def _differing_facts(a: Conditions, b: Conditions) -> Iterator[str]:
    for key in sorted(setting.name for setting in fields(ReadSettings)):
        values = getattr(a.how, key), getattr(b.how, key)
        if values[0] != values[1]:
            yield f"{key} was {values[0]} for A and {values[1]} for B"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return str(value)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values[:4]) + (" ..." if len(values) > 4 else "") if values else "nothing known"
