"""All metrics of a run as one mapping, the `metrics` part of summary.json (docs/results.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dlemu.config.schema import Metric
from dlemu.metrics.au import Rows, au_dlio_percent, au_dlio_v1_percent, au_percent, kept_rows
from dlemu.metrics.rates import (
    first_batch_seconds,
    late_handover_share,
    per_second,
    percentiles_ms,
    training_ns,
)

MB, MIB = 1e6, 2**20


def training_metrics(rows: Rows, settings: Metric) -> dict[str, Any]:
    """Return every metric of the training rows of all ranks; empty when there are none."""
    if not len(rows):
        return {}
    kept = kept_rows(rows, settings.exclude_start_steps, settings.exclude_end_steps)
    return {
        "au_percent": _spread(kept, au_percent),
        "au_rules_percent": _spread(rows, au_percent),
        "au_dlio_percent": _per_epoch(
            rows, lambda part: au_dlio_percent(part, settings.exclude_start_steps, settings.exclude_end_steps)
        ),
        "au_dlio_v1_percent": _per_epoch(rows, au_dlio_v1_percent),
        "samples_per_second": _rate(rows, "samples", 1),
        "app_mb_per_second": _rate(rows, "app_bytes", MB),
        "app_mib_per_second": _rate(rows, "app_bytes", MIB),
        "app_bytes": int(rows["app_bytes"].sum()),
        "read_calls": int(rows["read_calls"].sum()),
        "samples": int(rows["samples"].sum()),
        "training_seconds": training_ns(rows) / 1e9,
        "time_to_first_batch_seconds": _per_epoch(rows, first_batch_seconds),
        "wait_ms": _waits(rows, kept),
        "read_ms": percentiles_ms(rows["read_ns"]),
        "handover_share_of_wait": late_handover_share(kept),
        "host_oversleep_ms": percentiles_ms(rows["slept_ns"] - _end_ns(rows)),
    }


def _end_ns(rows: Rows) -> np.ndarray[Any, np.dtype[np.int64]]:
    end: np.ndarray[Any, np.dtype[np.int64]] = rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"]
    return end


def _split(rows: Rows, column: str) -> list[Rows]:
    return [rows[rows[column] == value] for value in np.unique(rows[column])]


def _spread(rows: Rows, measure: Callable[[Rows], float]) -> dict[str, Any]:
    """Return the measure over all rows (`mean`: weighted by time), over epochs and over ranks."""
    per_epoch = [measure(part) for part in _split(rows, "epoch")]
    return {
        "mean": measure(rows),
        "std": float(np.std(per_epoch)) if per_epoch else 0.0,
        "per_epoch": per_epoch,
        "per_rank": [measure(part) for part in _split(rows, "rank")],
    }


def _per_epoch(rows: Rows, measure: Callable[[Rows], float]) -> dict[str, Any]:
    """Return the plain mean over epochs, as DLIO does, and its parts."""
    per_epoch = [measure(part) for part in _split(rows, "epoch")]
    return {"mean": float(np.mean(per_epoch)), "std": float(np.std(per_epoch)), "per_epoch": per_epoch}


def _rate(rows: Rows, column: str, unit: float) -> dict[str, Any]:
    """Return units per second of training: over the whole run (`mean`: total over total), per epoch and rank."""

    def measure(part: Rows) -> float:
        return per_second(float(part[column].sum()) / unit, part)

    return _spread(rows, measure)


def _waits(rows: Rows, kept: Rows) -> dict[str, Any]:
    return {
        "kept_steps": percentiles_ms(kept["wait_ns"]),
        "all_steps": percentiles_ms(rows["wait_ns"]),
        "per_rank_p99": [percentiles_ms(part["wait_ns"])["p99"] for part in _split(rows, "rank")],
        "per_epoch": [percentiles_ms(part["wait_ns"]) for part in _split(rows, "epoch")],
    }
