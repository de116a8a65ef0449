"""What is compared of a run: figures of its summary, and what its device did."""

from __future__ import annotations

import math

import numpy as np

from dlemu.results.run import Run
from dlemu.results.summary import Mean
from dlemu.sizing.answers import RunFigures


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
        au_percent=_plain(metrics.au_percent),
        au_rules_percent=_plain(metrics.au_rules_percent),
        samples_per_second=_plain(metrics.samples_per_second),
        app_mb_per_second=_plain(metrics.app_mb_per_second),
        device_mb_per_second=_plain(metrics.device_mb_per_second),
        time_to_first_batch_seconds=_plain(metrics.time_to_first_batch_seconds),
        ceiling_au_percent=metrics.ceiling_au_percent,
        au_threshold_percent=metrics.au_threshold_percent,
        max_device_mb_per_second=max_device_mb_per_second(run),
        mean_device_read_latency_ms=mean_device_read_latency_ms(run),
    )


def _plain(figure: Mean | None) -> Mean | None:
    """Return a figure without its spreads over ranks and epochs."""
    return None if figure is None else Mean(mean=figure.mean, per_epoch=figure.per_epoch)


def max_device_mb_per_second(run: Run) -> float | None:
    """Return the most that the counted devices of a host delivered together in one interval of the telemetry.

    None where no device is counted (`counted`, docs/telemetry.md).
    """
    totals: dict[tuple[str, float], float] = {}
    for (host, _, _, seconds), rate in _readings(run, "read_mb_per_second").items():
        totals[host, seconds] = totals.get((host, seconds), 0.0) + rate
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
