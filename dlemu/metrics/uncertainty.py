"""The uncertainty of the sustained AU and its components (docs/uncertainty.md).

As in the GUM (JCGM 100:2008), the standard uncertainties of independent components are added in squares; the expanded
uncertainty U is k = 2 times the result, a confidence of about 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dlemu.metrics.au import au_percent
from dlemu.metrics.loss import total_ns
from dlemu.metrics.over_time import Floats, Intervals
from dlemu.metrics.rates import by_epoch
from dlemu.metrics.rows import Rows, StepTable, Whole, in_order, sum_of
from dlemu.metrics.sustained import supplies_of, training_spans
from dlemu.metrics.t_interval import Values, estimate

COVERAGE = 2.0
"""k, the factor from the combined standard uncertainty to U."""
_CONFIDENCE = 0.9545
"""Confidence of an interval of +- 2 standard deviations of a normal distribution."""
_WINDOW_SECONDS, _WINDOW_STEPS = 1.0, 2
"""Least length of a window of time in which the AU is computed, and in steps: long compared with a step, and with the
time slices in which drives, caches and throttles work."""
_MIN_WINDOWS = 6
"""Number of windows into which a run of less than _MIN_WINDOWS x _WINDOW_SECONDS is divided."""
_MIN_VALUES = 3
"""Fewest values (windows or epochs) for an interval: with two, Student's t is 14, and the interval of no use."""
_CLOCK_NS = 1_000
"""Assumed error of a stamp: a system call and a thread switch come between the event and its stamp."""


@dataclass(frozen=True)
class Component:
    """One source of uncertainty."""

    name: str
    percent: float
    """Standard uncertainty of the AU that it causes, in points."""
    kind: str
    """How it was found (GUM): `A`, from the spread of measured values; `B`, from knowledge of the method."""


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Uncertainty of AU of a run."""

    expanded_percent: float
    """U (k = 2), in points: the true value is within +- U in about 95 of 100 runs."""
    budget: tuple[Component, ...]
    """The components of U."""


def uncertainty_of(rows: Rows, kept: Rows) -> Uncertainty | None:
    """Return the uncertainty of the sustained AU of the same rows; None when too little was measured."""
    if not len(kept):
        return None
    rows, kept = in_order(rows), in_order(kept)
    supplies = supplies_of(rows)
    read_ns, time_ns = sum(supply.read_ns for supply in supplies), sum(supply.time_ns for supply in supplies)
    supply_percent = 100 * read_ns / time_ns if time_ns > 0 else math.inf
    by_supply = supply_percent < au_percent(kept)
    values = np.concatenate([*_windows(rows if by_supply else kept, by_supply=by_supply), np.empty(0)])
    if len(values) < _MIN_VALUES:
        epochs = [supply.percent for supply in supplies] if by_supply else map(au_percent, by_epoch(kept))
        values = np.array(list(epochs))
    if len(values) < _MIN_VALUES:
        return None
    spread = estimate(np.minimum(values, 100.0) if not by_supply else values, _CONFIDENCE).half_width_percent / COVERAGE
    edge = math.sqrt(sum(supply.edge_ns**2 for supply in supplies)) if by_supply else 0.0
    all_ns = time_ns if by_supply else total_ns(kept)
    components = (
        Component("spread between windows of time", spread, "A"),
        Component("batches half read where an epoch's window ends", 100 * edge / max(all_ns, 1.0), "B"),
        Component("clock and stamps", 100 * _CLOCK_NS * math.sqrt(len(rows)) / max(all_ns, 1.0), "B"),
    )
    combined = math.sqrt(sum(component.percent**2 for component in components))
    return Uncertainty(expanded_percent=COVERAGE * combined, budget=components)


def _windows(rows: StepTable, *, by_supply: bool) -> Iterator[Values]:
    """Yield for each epoch the supply of each window of time, or its AU if not `by_supply`, in percent."""
    ranks = max(1, len(rows.by_rank))
    extents: dict[int, list[_Extent]] = {epoch: [] for epoch in rows.values("epoch")}
    for own in rows.by_rank_and_epoch:
        begins, ends = _moments(own, by_supply=by_supply)
        first, last, end = _trained(own, np.array([begins.min(), begins.max(), ends.max()])).tolist()
        extents[own.values("epoch")[0]].append(_Extent(first, last, max(end, last + 1.0)))
    spans = {epoch: _span(parts, by_supply=by_supply) for epoch, parts in extents.items()}
    step_ns = sum_of(rows, "compute_ns") / max(1, len(rows))
    window_ns = min(_WINDOW_SECONDS * 1e9, sum(high - low for low, high in spans.values()) / _MIN_WINDOWS)
    window_ns = max(window_ns, _WINDOW_STEPS * step_ns)
    rates: dict[int, list[Floats]] = {epoch: [] for epoch in spans}
    for own in rows.by_rank_and_epoch:
        (epoch,) = own.values("epoch")
        low, high = spans[epoch]
        windows = int((high - low + 1.0) / window_ns)
        if windows:
            edges = np.linspace(low, high, windows + 1)  # a little longer: else the end of each epoch would be left out
            rates[epoch].append(_rates(own, edges, by_supply=by_supply))
    yield from (100 * np.sum(parts, axis=0) / ranks for parts in rates.values() if parts)


def _span(parts: Sequence[_Extent], *, by_supply: bool) -> tuple[float, float]:
    """Return begin and end of the time to divide into windows, in ns of training since the epoch's start."""
    if by_supply:
        return min(part.first_begin for part in parts), min(part.last_begin for part in parts)
    return 0.0, max(part.end for part in parts)


class _Extent(NamedTuple):
    """When a rank's batches in an epoch were read, or computed, in ns of training since the epoch's start."""

    first_begin: float
    last_begin: float
    end: float


def _rates(own: StepTable, edges: Floats, *, by_supply: bool) -> Floats:
    """Return a rank's computation time read, or computed, in training time, per ns between each two edges."""
    begins, ends = _moments(own, by_supply=by_supply)
    begun, ended = _trained(own, begins), _trained(own, ends)
    amounts = own["compute_ns"] * (ended - begun) / (ends - begins)
    return Intervals(begun, np.maximum(ended, begun + 1.0), edges).rates(amounts)


def _moments(own: StepTable, *, by_supply: bool) -> tuple[Whole, Whole]:
    """Return when the reading of each batch of one rank, or its computation, began and ended."""
    if by_supply:
        begins, ends = own["started_ns"], own["finished_ns"]
    else:
        begins = own["free_ns"] + own["wait_ns"]
        ends = begins + own["compute_ns"]
    return begins, np.maximum(ends, begins + 1)


def _trained(own: StepTable, moments: Whole) -> Floats:
    """Return the moments on the clock of the training time of one rank's epoch, which stops between blocks of steps."""
    lows, highs = training_spans(own)
    start = lows.min()
    real = np.stack([lows, highs], axis=1).ravel()
    trained = np.cumsum(np.stack([np.zeros(len(lows)), highs - lows], axis=1).ravel())
    return np.asarray(np.interp(moments - start, real - start, trained))
