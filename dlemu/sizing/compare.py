"""Two storages beside each other: differences with their uncertainty, and what they come to in a year. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlemu.sizing.student import half_width

CONFIDENCE = 0.95
PLANNED_EPOCHS = 100
"""Of one model; the number of the KIOXIA CM7 white paper on DLIO."""
YEAR_HOURS, YEAR_DAYS = 8760.0, 365.0

METRICS = {
    "total_seconds": "s",
    "au_percent": "%",
    "au_rules_percent": "%",
    "samples_per_second": "/s",
    "app_mb_per_second": "MB/s",
    "device_mb_per_second": "MB/s",
    "max_device_mb_per_second": "MB/s",
    "mean_device_read_latency_ms": "ms",
    "time_to_first_batch_seconds": "s",
}
"""Compared metrics and their units."""


@dataclass(frozen=True)
class Value:
    """A mean and the half width of its 95 % interval; the latter None where nothing was repeated."""

    mean: float
    half_width: float | None


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What only the user knows of one side; None where not given."""

    price: float | None = None
    watts: float | None = None


def compare_runs(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Return the differences of A to B, metric by metric, and the plan of a year; both are `figures` of a run."""
    return {
        "ranks": [a["ranks"], b["ranks"]],
        "passed": [a["passed"], b["passed"]],
        "limited_by": [(side["limited_by"] or {}).get("what") for side in (a, b)],
        "metrics": {name: told for name in METRICS if (told := _difference(value_of(a, name), value_of(b, name)))},
        "plan": _plan(a, b),
    }


def value_of(figures: dict[str, Any], name: str) -> Value | None:
    """Return a metric of a run. The repetitions are its epochs; the total time has the spread of the epochs' rates."""
    found = figures.get(name)
    if found is None:
        return None
    if isinstance(found, dict):
        return None if found["mean"] is None else Value(found["mean"], _width(found.get("per_epoch") or []))
    if name == "total_seconds" and figures.get("samples_per_second"):
        rate = figures["samples_per_second"]
        width = _width(rate.get("per_epoch") or [])
        return Value(found, None if width is None or not rate["mean"] else found * width / rate["mean"])
    return Value(found, None)


def _width(epochs: Sequence[float | None]) -> float | None:
    values = [value for value in epochs if value is not None]
    if len(values) < 2:
        return None
    return half_width(float(np.std(values, ddof=1)), len(values), CONFIDENCE)


def _difference(a: Value | None, b: Value | None) -> dict[str, Any] | None:
    """Return both and how much more A is than B in %; relative half widths add in squares (to first order)."""
    if a is None or b is None:
        return None
    percent = 100 * (a.mean / b.mean - 1) if b.mean else None
    width = None
    if a.mean and b.mean and a.half_width is not None and b.half_width is not None:
        width = 100 * abs(a.mean / b.mean) * math.hypot(a.half_width / a.mean, b.half_width / b.mean)
    return {
        "a": a.mean,
        "a_half_width": a.half_width,
        "b": b.mean,
        "b_half_width": b.half_width,
        "difference_percent": percent,
        "half_width_percent": width,
        "distinct": None if percent is None or width is None else abs(percent) > width,
    }


def _plan(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any] | None:
    hours = [_model_hours(side) for side in (a, b)]
    if hours[0] is None or hours[1] is None:
        return None
    return {
        "epochs": PLANNED_EPOCHS,
        "hours_per_model": hours,
        "models_per_year": [YEAR_HOURS / side for side in hours if side],
        "days_saved_per_year": YEAR_DAYS * (1 - hours[0] / hours[1]),
    }


def _model_hours(figures: dict[str, Any]) -> float | None:
    seconds = figures.get("total_seconds")
    return PLANNED_EPOCHS * seconds / figures["epochs"] / 3600 if seconds else None


def fed(points: Sequence[dict[str, Any]]) -> int | None:
    """Return the largest count of accelerators that passed among the figures of runs; None when none passed."""
    return max((point["ranks"] for point in points if point["passed"]), default=None)


def economy(accelerators: int | None, gb_per_second: float | None, extras: Extras) -> dict[str, Any]:
    """Return cost per accelerator that is fed, and GB/s per watt; None for what was not given or not measured."""
    cost = extras.price / accelerators if extras.price is not None and accelerators else None
    per_watt = gb_per_second / extras.watts if extras.watts and gb_per_second is not None else None
    return {
        "accelerators_fed": accelerators,
        "gb_per_second": gb_per_second,
        "cost_per_accelerator": cost,
        "gb_per_second_per_watt": per_watt,
    }
