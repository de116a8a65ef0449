"""Turns simulated times into step rows, and these into metrics, by the same functions as for measured runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.event_model import EpochTimes, Scene
from dlemu.jobs.training.schedule import Epoch
from dlemu.jobs.training.steplog import STEP_DTYPE, TRAINING, StepRows
from dlemu.metrics.au import au_dlio_percents, au_percent, kept_rows
from dlemu.metrics.rates import first_batch_seconds, per_second
from dlemu.metrics.rows import Rows
from dlemu.metrics.spread import averaged, over_epochs
from dlemu.metrics.sustained import sustained_au

VERDICT_AUS = {"sustained": "au_sustained_percent", "au": "au_percent", "rules": "au_whole_percent"}
"""`metric.verdict` -> the AU that is compared with the threshold."""

EPOCH_GAP_SECONDS = 1.0
"""An arbitrary gap between the simulated time stamps of epochs: no metric uses it."""


@dataclass(frozen=True, kw_only=True)
class SimulatedFigures:
    """Metrics of a simulated run, as defined in docs/metrics.md."""

    au_percent: float
    """AU without the steps excluded by `metric.exclude_start_steps` and `exclude_end_steps`."""
    au_sustained_percent: float
    au_whole_percent: float
    au_dlio_percent: float | None
    """None where no step is counted, or the host's delay after a step takes longer than the step."""
    au_dlio_v1_percent: float | None
    samples_per_second: float
    app_mb_per_second: float
    time_to_first_batch_seconds: float
    training_seconds: float

    def verdict_au(self, by: str) -> float:
        """Return the AU that is compared with the threshold when `metric.verdict` is `by`."""
        au: float = getattr(self, VERDICT_AUS[by])
        return au


def step_rows(epoch: Epoch, scene: Scene, times: EpochTimes, *, start_seconds: float, batch_size: int) -> StepRows:
    """Return the simulated epoch as rows of a step log; its blocks follow each other without a pause."""
    ranks, steps = times.ready.shape
    rows = np.zeros((ranks, steps), STEP_DTYPE)

    def stamp(seconds: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.rint((np.asarray(seconds) + start_seconds) * 1e9).astype(np.int64)

    free, overhead_ns = stamp(times.free), round(scene.costs.step_seconds * 1e9)
    compute = np.rint(scene.compute_seconds * 1e9).astype(np.int64)
    rows["rank"], rows["phase"] = np.arange(ranks)[:, np.newaxis], TRAINING
    rows["epoch"], rows["step"] = epoch.number, np.arange(1, steps + 1)
    rows["block"] = np.repeat([block.number for block in epoch.blocks], [block.steps for block in epoch.blocks])[:steps]
    rows["free_ns"], rows["compute_ns"] = free[:-1], compute
    rows["ready_ns"] = stamp(times.ready)
    begin = np.maximum(rows["ready_ns"], rows["free_ns"])
    end = begin + compute
    over = np.maximum(free[1:], end.max(axis=0))  # rounding must not let a step end before its slowest rank
    rows["free_ns"][:, 1:] = over[:-1]
    rows["wait_ns"] = np.maximum(0, begin - rows["free_ns"])
    rows["sync_ns"] = over - (rows["free_ns"] + rows["wait_ns"] + compute)
    rows["met_ns"] = over + overhead_ns
    rows["asked_ns"] = np.concatenate([np.full((ranks, 1), free[0]), rows["met_ns"][:, :-1]], axis=1)
    rows["got_ns"] = np.maximum(rows["ready_ns"], rows["asked_ns"])
    rows["slept_ns"] = np.maximum(end, rows["got_ns"])  # a host whose delay is longer than a step does not sleep
    rows["started_ns"], rows["finished_ns"] = stamp(times.started), stamp(times.finished)
    rows["read_ns"] = stamp(times.read) - rows["started_ns"]
    rows["decode_ns"] = rows["finished_ns"] - rows["started_ns"] - rows["read_ns"]
    rows["samples"] = batch_size
    rows["app_bytes"] = np.rint(scene.app_bytes)
    flat: StepRows = rows.reshape(-1)
    return flat


def au_of(rows: Rows, workload: Workload, by: str) -> float:
    """Compute one AU of simulated step rows, a key of VERDICT_AUS: an eighth of the work of all figures."""
    if by == "rules":
        return au_percent(rows)
    kept = kept_rows(rows, workload.metric.exclude_start_steps, workload.metric.exclude_end_steps)
    if by == "au":
        return au_percent(kept)
    sustained = sustained_au(rows, kept).mean
    return math.nan if sustained is None else sustained


def outcome_of(rows: Rows, workload: Workload, sustained: float | None = None) -> SimulatedFigures:
    """Compute the metrics of simulated step rows as those of a run are computed; `sustained` AU if known otherwise."""
    metric = workload.metric
    dlio = au_dlio_percents(rows, metric.exclude_start_steps, metric.exclude_end_steps)
    training = per_second(1.0, rows)
    return SimulatedFigures(
        au_percent=au_of(rows, workload, "au"),
        au_sustained_percent=au_of(rows, workload, "sustained") if sustained is None else sustained,
        au_whole_percent=au_of(rows, workload, "rules"),
        au_dlio_percent=over_epochs([v2 for v2, _ in dlio]).mean,
        au_dlio_v1_percent=over_epochs([v1 for _, v1 in dlio]).mean,
        samples_per_second=per_second(float(rows["samples"].sum()), rows),
        app_mb_per_second=per_second(float(rows["app_bytes"].sum()) / 1e6, rows),
        time_to_first_batch_seconds=averaged(rows, first_batch_seconds).mean or 0.0,
        training_seconds=1 / training if training else math.nan,
    )
