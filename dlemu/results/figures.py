"""What is kept of a run beside others: in a sweep, a comparison, on a page of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dlemu.metrics.spread import Mean
from dlemu.metrics.t_interval import half_width
from dlemu.metrics.verdict import Outcome

CONFIDENCE = 0.95  # docs/sizing.md, section 6; as k = 2 of uncertainty.md


@dataclass(frozen=True)
class Value:
    """A mean, and the half width of its 95 % interval where that is known."""

    mean: float
    half_width: float | None = None
    """None of fewer than three repetitions."""
    each: tuple[float, ...] = ()
    """The repetitions: of each epoch, or of each checkpoint."""


@dataclass(frozen=True, kw_only=True)
class JobFigures:
    """What is kept of a run of any kind."""

    kind: str
    """Of the job; its catalogue (`dlemu.metrics.catalogue`) has the metrics' words and units."""
    workload: str
    accelerator: str | None = None
    ranks: int
    epochs: int | None = None
    """Planned; None of a job that has none."""
    passed: bool | None = None
    """None of a job that neither passes nor fails, and of a run without a verdict."""
    verdict: str = ""
    outcome: Outcome | None = None
    """None of a job that is not judged."""
    limited_by: dict[str, str | None] = field(default_factory=dict)
    """By phase (`run` of a job that has one alone): what limited it."""
    threshold_percent: float | None = None
    """At which it passes."""
    metrics: dict[str, Value] = field(default_factory=dict)
    """By name; those that are known."""

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric, None where it is not known."""
        value = self.metrics.get(metric)
        return None if value is None else value.mean


def half_width_of(values: Sequence[float]) -> float | None:
    """Return the half width of the 95 % interval of repetitions' mean; None of fewer than three.

    Of two, Student's t makes 6 times their difference: an interval that says nothing, and reaches beyond all sense.
    """
    if len(values) < 3:
        return None
    return half_width(float(np.std(values, ddof=1)), len(values), CONFIDENCE)


def mean_over(values: Sequence[float]) -> Value:
    """Return the mean of a figure over repetitions with its interval."""
    return Value(float(np.mean(values)), half_width_of(values), tuple(values))


def value_of(figure: Mean | float | None) -> Value | None:
    """Return a figure of a summary with the interval over its epochs; None where it has no value."""
    if not isinstance(figure, Mean):
        return None if figure is None else Value(figure)
    if figure.mean is None:
        return None
    each = tuple(value for value in figure.per_epoch if value is not None)
    return Value(figure.mean, half_width_of(each), each)
