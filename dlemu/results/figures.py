"""The figures of a run that are kept in a sweep, a search or a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dlemu.metrics.rates import Mean
from dlemu.metrics.t_interval import half_width
from dlemu.metrics.verdict import Outcome
from dlemu.results.wording import scaled

CONFIDENCE = 0.95  # docs/compare.md; the same as k = 2 in docs/uncertainty.md


@dataclass(frozen=True)
class Value:
    """A mean, and the half width of its 95 % interval where that is known."""

    mean: float
    half_width: float | None = None
    """None with fewer than three repetitions."""
    each: tuple[float, ...] = ()
    """The value of each repetition: an epoch, or a checkpoint."""

    def over(self, count: int) -> Value:
        """Return the share of each of `count` equal parts."""
        return Value(self.mean / count, None if self.half_width is None else self.half_width / count)


@dataclass(frozen=True, kw_only=True)
class JobFigures:
    """The figures of a run of any kind of job."""

    kind: str
    """Kind of job: `training`, `checkpoint`, ...; its catalogue has the metrics' titles and units."""
    workload: str
    accelerator: str | None = None
    sample_divisor: float | None = None
    """How many times larger samples are without the workload's scale; None where that is not known."""
    ranks: int
    epochs: int | None = None
    """Planned epochs; None for jobs without epochs."""
    cut_steps: tuple[int, ...] | None = None
    """Planned steps of each epoch, where `train.total_training_steps` cuts epochs short; None where all are whole."""
    computation_seconds: float | None = None
    """Mean of `train.computation_time`; None for jobs without steps and for results of other tools."""
    passed: bool | None = None
    """None for jobs that neither pass nor fail, and for runs without a verdict."""
    verdict: str = ""
    outcome: Outcome | None = None
    """None for jobs that neither pass nor fail."""
    limited_by: dict[str, str | None] = field(default_factory=dict)
    """Phase -> what limited it; jobs with a single phase use the key `run`."""
    threshold_percent: float | None = None
    """Value of the judged metric (AU in training) at which it passes."""
    metrics: dict[str, Value] = field(default_factory=dict)
    """Name -> value of the metrics that are known."""

    @property
    def title(self) -> str:
        """What ran, in short: workload and accelerator."""
        return " ".join(filter(None, [self.workload, self.accelerator])) + scaled(self.sample_divisor)

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric, None where it is not known."""
        value = self.metrics.get(metric)
        return None if value is None else value.mean


def half_width_of(values: Sequence[float]) -> float | None:
    """Return the half width of the 95 % interval of the mean over repetitions; None with fewer than three.

    With two, Student's t gives 6 times their difference: an interval that is too wide to be of use.
    """
    if len(values) < 3:
        return None
    return half_width(float(np.std(values, ddof=1)), len(values), CONFIDENCE)


def mean_over(values: Sequence[float]) -> Value:
    """Return the mean over repetitions with its interval."""
    return Value(float(np.mean(values)), half_width_of(values), tuple(values))


def value_of(figure: Mean | float | None) -> Value | None:
    """Return a summary's metric with the interval over its epochs; None where it has no value."""
    if not isinstance(figure, Mean):
        return None if figure is None else Value(figure)
    if figure.mean is None:
        return None
    each = tuple(value for value in figure.per_epoch if value is not None)
    return Value(figure.mean, half_width_of(each), each)
