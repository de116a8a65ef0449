"""The figures of a run that studies (sweeps, searches, comparisons) keep, and the difference of two runs' figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dlemu.metrics.catalogue import Metric
from dlemu.metrics.rates import Mean
from dlemu.metrics.t_interval import half_width
from dlemu.results.parts import EnvironmentFields, RunFields, TargetFields
from dlemu.results.wording import at_scale

CONFIDENCE = 0.95  # docs/compare.md; the same as k = 2 in docs/uncertainty.md
SAME_PERCENT = 0.05  # a smaller difference would be shown as 0.0 %
_COMPARATIVES = {"higher": ("better", "worse"), "lower": ("worse", "better"), "neither": ("higher", "lower")}
"""`Metric.better` -> what a side with a higher value is called, and what one with a lower value is called."""


@dataclass(frozen=True)
class Value:
    """A mean, and the half width of its 95 % interval where that is known."""

    mean: float
    half_width: float | None = None
    """None with fewer than three repetitions: epochs, or checkpoints."""


@dataclass(frozen=True, kw_only=True)
class JobFigures(RunFields, TargetFields):
    """The figures of a run of any kind of job."""

    epochs: int | None = None
    """Planned epochs; None for jobs without epochs."""
    cut_steps: tuple[int, ...] | None = None
    """Planned steps of each epoch, where `train.total_training_steps` cuts epochs short; None where all are whole."""
    computation_seconds: float | None = None
    """Mean of `train.computation_time`; None for jobs without steps and for results of other tools."""
    limited_by: dict[str, str | None] = field(default_factory=dict)
    """Phase -> what limited it; jobs with a single phase use the key `run`."""
    metrics: dict[str, Value] = field(default_factory=dict)
    """Name -> value of the metrics that are known."""

    @property
    def title(self) -> str:
        return " ".join(filter(None, [self.workload, self.accelerator])) + at_scale(self.sample_divisor)

    @property
    def from_storage_percent(self) -> float | None:
        """Share of the bytes read that the dataset's devices delivered, %, at most 100; None if unknown."""
        read, delivered = self.mean("app_mb_per_second"), self.mean("device_mb_per_second")
        return min(100.0, 100 * delivered / read) if read and delivered is not None else None

    def mean(self, metric: str) -> float | None:
        value = self.metrics.get(metric)
        return None if value is None else value.mean


def half_width_of(values: Sequence[float]) -> float | None:
    """Return the half width of the 95 % interval of the mean over repetitions; None for fewer than three."""
    if len(values) < 3:  # for two, Student's t gives 6 times their difference, which is too wide to be useful
        return None
    return half_width(float(np.std(values, ddof=1)), len(values), CONFIDENCE)


def value_of(figure: Mean | float | None) -> Value | None:
    """Return a metric of a summary with its interval over the epochs; None if the metric has no value."""
    if isinstance(figure, Mean):
        epochs = [value for value in figure.per_epoch if value is not None]
        return None if figure.mean is None else Value(figure.mean, half_width_of(epochs))
    return None if figure is None else Value(figure)


@dataclass(frozen=True, kw_only=True)
class Conditions(EnvironmentFields):
    """The conditions under which a run was measured, from its kind of job and its summary. All values are JSON."""

    title: str
    """Short description of the job; runs with different titles are not comparable."""
    devices: tuple[str, ...] = ()
    """The devices that the run read or wrote, with model and size."""
    facts: dict[str, str] = field(default_factory=dict)
    """Further conditions, as text, that may differ between comparable runs."""
    work: dict[str, Any] = field(default_factory=dict)
    """The data that was read or written; runs that differ here did different work."""
    how: dict[str, Any] = field(default_factory=dict)
    """Settings that affect measurements; empty for other benchmarks' results, which do not record them."""
    from_memory: tuple[str, ...] = ()
    """Phases in which memory served the data instead of the storage; `run` for a job with a single phase."""
    warnings: tuple[str, ...] = ()
    """Sentences without which the numbers would be misread."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One metric of both sides."""

    a: Value
    b: Value
    difference_percent: float | None
    """100 x (A / B - 1); None where B is 0."""
    half_width_percent: float | None
    """Half width of the 95 % interval of `difference_percent`; None where either side has none."""

    @property
    def distinct(self) -> bool | None:
        """Whether the difference is larger than its half width; None if either is unknown."""
        percent, width = self.difference_percent, self.half_width_percent
        return None if percent is None or width is None else abs(percent) > width


def difference(a: Value, b: Value) -> Difference:
    """Return the difference of A from B, %; to first order, the relative half widths of both add in quadrature."""
    percent = 100 * (a.mean / b.mean - 1) if b.mean else None
    width = None
    if a.mean and b.mean and a.half_width is not None and b.half_width is not None:
        width = 100 * abs(a.mean / b.mean) * math.hypot(a.half_width / a.mean, b.half_width / b.mean)
    return Difference(a=a, b=b, difference_percent=percent, half_width_percent=width)


def difference_in_words(
    change: Difference, metric: Metric, *, a: str = "A", b: str = "B", repetitions: str = "repetitions"
) -> str:
    """Return the difference of a metric as a phrase, such as `A takes 12.0 % less time than B (+- 1.0)`.

    `a` and `b` name the sides; `repetitions` is the plural of what was repeated, such as epochs.
    """
    percent = change.difference_percent
    half_width = change.half_width_percent
    if percent is None:
        return f"{b} is 0"
    looks_equal = abs(percent) < SAME_PERCENT
    if half_width is None:
        interval = f"too few {repetitions}: no interval" if metric.phase else "no interval: it may be chance"
    else:
        interval = f"+- {half_width:.1f}"
        if looks_equal or not change.distinct:
            in_time = " in time" if metric.phase else ""
            return f"no significant difference{in_time}: {a} to {b} {percent:+.1f} % {interval}"
    if metric.phase and looks_equal:
        phrase = f"{a} and {b} take the same time"
    elif metric.phase:
        phrase = f"{a} takes {abs(percent):.1f} % {'less' if percent < 0 else 'more'} time than {b}"
    elif half_width is None:  # percentiles of few prompts may differ several-fold by chance, so neither side is better
        phrase = f"{a} to {b} {percent:+.1f} %"
    else:
        if_higher, if_lower = _COMPARATIVES[metric.better]
        phrase = f"{a} is {abs(percent):.1f} % {if_higher if percent > 0 else if_lower} than {b}"
    return f"{phrase} ({interval})"
