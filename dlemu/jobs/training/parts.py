"""`PARTS` of the training job: its metrics, when its runs are comparable, its charts, predictor and host checks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.measured import Facts, Series, exported
from dlemu.jobs.training.result import TRAINING, Run
from dlemu.jobs.training.summary import Metrics, Summary
from dlemu.jobs.training.wording import memory_warning, screen
from dlemu.metrics.catalogue import ACCELERATOR, RUN, Catalogue, Metric, declared
from dlemu.report.units import plain, size
from dlemu.results.figures import Conditions, JobFigures, Value, value_of
from dlemu.results.host_activity import devices_of
from dlemu.results.kinds import JobParts
from dlemu.results.wording import count

if TYPE_CHECKING:
    from dlemu.jobs.training.prediction.prediction import Prediction
    from dlemu.report.figure_base import Figure
    from dlemu.runner.prediction_request import PredictionRequest

CATALOGUE = Catalogue(
    metrics=(
        *declared(Metrics),
        Metric(
            title="peak read from the device",
            unit="MB/s",
            better="higher",
            meaning="in one telemetry interval, all devices together",
            name="max_device_mb_per_second",
            axis="peak device MB/s",
            head="max\nMB/s",
            digits=1,
            is_drawn=True,
        ),
        Metric(
            title="device read latency",
            unit="ms",
            better="lower",
            meaning="mean over the devices' reads",
            name="mean_device_read_latency_ms",
            head="read\nms",
            digits=2,
            is_drawn=True,
        ),
    ),
    rank=ACCELERATOR,
    repetition="epoch",
    judged="au_percent",
    decisive="au_sustained_percent",
    fallback="au_whole_percent",
    note="Of whole runs; device figures are of the devices behind the dataset, from the kernel's counters.",
)


def figures(run: Run) -> JobFigures:
    """Return the metrics of a run; its epochs are their repetitions."""
    summary, metrics, limit = run.summary, run.summary.metrics, run.summary.limited_by
    epoch_steps, full_steps = metrics.steps_per_epoch, run.facts.train_plan.steps_per_epoch
    values_by_name = {metric.name: getattr(metrics, metric.name, None) for metric in CATALOGUE} | _device_metrics(run)
    return JobFigures(
        **summary.head,
        epochs=len(epoch_steps),
        cut_steps=epoch_steps if any(steps < full_steps for steps in epoch_steps) else None,
        computation_seconds=mean_seconds(run.facts.workload.train.computation_time),
        limited_by={RUN: limit.what if limit else None},
        threshold_percent=metrics.au_threshold_percent,
        metrics=training_metrics(values_by_name),
    )


def training_metrics(metrics: dict[str, Any]) -> dict[str, Value]:
    """Return the metrics that have a value; the total time gets the relative half width of samples/s."""
    values = {name: value for name, metric in metrics.items() if (value := value_of(metric)) is not None}
    total, rate = values.get("total_seconds"), values.get("samples_per_second")
    if total and rate and rate.half_width is not None and rate.mean:
        values["total_seconds"] = Value(total.mean, total.mean * rate.half_width / rate.mean)
    return values


# Settings of `reader` that must agree for the numbers of two runs to be comparable
_BATCH_SETTINGS = ("batch_size", "file_shuffle", "sample_shuffle", "decode", "verify", "tensors", "tensor_bytes")
_CACHE_SETTINGS = ("odirect", "evict_page_cache", "page_cache_percent")
_READ_SETTINGS = ("data_loader", "engine", "read_threads", "transfer_size")


def conditions(summary: Summary, facts: Facts) -> Conditions:
    """Return the conditions under which a run was measured, with its warning about the page cache."""
    warning, telemetry, reader = memory_warning(summary.memory), summary.telemetry, facts.workload.reader
    evaluation, plan, file_format = summary.evaluation, facts.train_plan, facts.workload.dataset.format
    how = {
        **{name: getattr(reader, name) for name in (*_BATCH_SETTINGS, *_CACHE_SETTINGS, *_READ_SETTINGS)},
        "synchronous": facts.workload.train.synchronous or reader.read_threads == 0,
        "reader_version": facts.reader_version,
    }
    # Rounded, as text, because versions of a compressor differ by a few bytes. Evaluations read further files.
    total_bytes = {"total_bytes": size(facts.total_bytes)} if evaluation is None else {}
    work: dict[str, Any] = {
        "format": file_format,
        "num_files_train": plan.num_files,
        "num_samples_per_file": plan.num_samples_per_file,
        **total_bytes,
        "batch_size": reader.batch_size,  # a step's computation time does not depend on it
        # Evaluations and checkpoints are part of `total_seconds`.
        "evaluated_samples": 0 if evaluation is None else evaluation.samples,
        "checkpoints": len(summary.checkpoints),
        "asynchronous_checkpoints": summary.asynchronous_checkpoints is not None,
    }
    return Conditions(
        title=summary.workload,
        devices=tuple(
            f"{device.name} ({plain(device.model)}, {plain(device.size_bytes, 'size_bytes')})"
            for device in (telemetry.devices if telemetry else ())
            if device.counted
        ),
        facts={
            "dataset": f"{count(plan.num_files, f'{file_format} file')}, {size(facts.total_bytes)}",
            "folder": summary.data_folder,
        },
        work=work,
        how=dict(sorted(how.items())),
        from_memory=(RUN,) if summary.memory and summary.memory.severity == "loud" else (),
        warnings=(f"with {count(summary.ranks, 'accelerator')} {warning}",) if warning else (),
    )


def _device_metrics(run: Run) -> dict[str, float | None]:
    """Return the peak rate of all counted devices together, and the mean latency of their reads; None if unknown."""
    rates = _counted_series(run, "read_mb_per_second")
    times = np.unique(np.concatenate([np.empty(0), *(series.seconds for series in rates)]))
    total = np.zeros(len(times))
    for series in rates:  # hosts read their devices at times of their own; a rate holds since the reading before it
        is_known = (times >= series.seconds[0]) & (times <= series.seconds[-1])
        total[is_known] += series.values[np.searchsorted(series.seconds, times[is_known])]
    reads, latencies = (
        {
            (series.host, series.probe, series.source, second): value
            for series in _counted_series(run, metric)
            for second, value in zip(series.seconds.tolist(), series.values.tolist(), strict=True)
        }
        for metric in ("reads_per_second", "mean_read_latency_ms")
    )
    pairs = np.array([(reads[key], ms) for key, ms in latencies.items() if reads.get(key, 0) > 0 and math.isfinite(ms)])
    latency_ms = float(np.average(pairs[:, 1], weights=pairs[:, 0])) if len(pairs) else None
    peak = float(total.max()) if len(total) else None
    return {"max_device_mb_per_second": peak, "mean_device_read_latency_ms": latency_ms}


def _counted_series(run: Run, metric: str) -> list[Series]:
    """Return a metric over time of each counted device that has readings."""
    probes = {device.probe for _, device in devices_of(run.telemetry) if device.counted}
    return [series for probe in probes for series in run.device_series(probe, metric) if len(series.seconds)]


def _charts(run: Run, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.jobs.training.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, run)


def _predict(source: Sequence[str] | Workload, request: PredictionRequest) -> tuple[Prediction, str, Workload]:
    from dlemu.jobs.training.prediction.run_prediction import run_prediction

    return run_prediction(source, request)


def _host_checks() -> Mapping[str, Any]:
    from dlemu.jobs.training.host_checks import CHECKS

    return CHECKS


PARTS = JobParts(
    answer_type=Summary,
    screen=screen,
    charts=_charts,
    job=TRAINING,
    catalogue=CATALOGUE,
    figures=figures,
    conditions=conditions,
    predict=_predict,
    host_checks=_host_checks,
    exported=exported,
)
