"""Predicts AU and samples/s on a calibrated storage: for one count of accelerators, or for the largest that passes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from datagen.errors import UserError
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import Calibration, flat
from dlemu.jobs.training.prediction.model_run import MOST_ROWS, Model, ModelRun
from dlemu.jobs.training.prediction.prediction import (
    EndedBy,
    Interval,
    PredictedCount,
    Prediction,
    PredictionQuestion,
    SimulatedFigures,
)
from dlemu.jobs.training.wording import recording_notes
from dlemu.metrics.demand import demand, sample_divisor
from dlemu.metrics.findings import Code, Confidence, Finding, LimitedBy
from dlemu.metrics.limit import OTHER_PROGRAMS_PERCENT, What
from dlemu.metrics.t_interval import quantile
from dlemu.results.drive import OUTSIDE, SPEED_PERCENT, taken_by_others
from dlemu.results.wording import Wording, sentences
from dlemu.results.wording import count as counted

MOST = 10_000
"""Default for the largest count tried: ends the search on a storage that no count saturates."""
MOST_RUNS = 8
"""Max simulated runs, each with other draws of read times: their mean is predicted, their spread is in the interval."""
AU_PERCENT, RATE_PERCENT = 1.0, 1.0
"""Half widths of the model's own error: of AU in points, of samples/s in percent."""
SEARCH_ROWS, INTERVAL_ROWS = 60_000, 120_000
"""Max rank-steps of a simulation that finds the count or its limit, and of one that gives an end of an interval."""
PROPORTIONAL_TRIALS = 4  # of a search: their counts are chosen in proportion to AU, later ones halve the bracket
NOTHING_PERCENT = 98.0
"""AU at and above which nothing is said to limit the run."""
HELPS_PERCENT = 2.0
"""Points of AU that removing a limit must gain for it to be named."""
_EVALUATIONS = "evaluations are not included: no AU counts them, but they lengthen the run"
_FINDINGS: Wording[str] = {
    f"{OUTSIDE}.readers": "no measurement had {readers:count reader}: the speed with {tried} is assumed",
    f"{OUTSIDE}.saturation": "the storage never reached its limit, or gave more at first, so it gives at least this: "
    "calibrate with a run that waits for data (--from RUN)",
    f"{OUTSIDE}.samples": "calibrated with samples of {calibrated_bytes:,.0f} bytes, predicted for {sample_bytes:,.0f}",
    Code.OTHER_PROGRAM_ON_CORES: "{busy_cores:.1f} of {cores:g} cores were busy with other work in the probe, and the "
    "intervals allow for that: stop it and predict again",
}
MORE_READERS, FASTER = 4, 2.0  # factors when looking for the limit; the trial after a run (scaling.TIMES) has 4 too
SHARE_ERROR = 0.5
"""How far off `Calibration.step_share` may be: were it a time, accelerators twice as fast would double it."""
BUSY_SHARE = 0.25
"""Share of the cores kept busy by other programs above which an issue is raised and intervals reach further down."""


def predict(
    workload: Workload,
    calibration: Calibration,
    *,
    ranks: int | None = None,
    hosts: int = 1,
    most: int = MOST,
    assumes_files: bool = False,
    overrides: Sequence[str] = (),
) -> Prediction:
    """Predict for `ranks` accelerators, or, if None, find the largest count up to `most` that passes; raises UserError.

    With `assumes_files` a count is predicted for as many files as it needs, even if the dataset has fewer.
    """
    if mean_seconds(workload.train.computation_time) <= 0:
        raise UserError("train.computation_time is 0, so any number of accelerators passes: choose an accelerator")
    if ranks is not None:
        calibration = _as_at_first(workload, calibration, ranks)
    predictor = _Predictor(Model(workload, calibration, hosts=hosts, assumes_files=assumes_files))
    if ranks is not None:
        counts, wanted, found = [predictor.count(ranks)], ranks, None
    else:
        found = predictor.search(most)
        middle, (low, high) = found
        wanted = low or max(1, middle)
        one_more = [middle + 1] if middle and middle < predictor.limit(most)[0] else []
        highest = [high] * predictor.saturated  # else nothing is known of so many
        edge = {max(1, number) for number in (middle, low, *highest, *one_more)}
        counts = [predictor.count(number) for number in sorted(edge)]
    shown = next(count for count in counts if count.accelerators == wanted)
    threshold_percent, by = 100 * workload.metric.au, workload.metric.verdict
    tried = [count for count in counts if count.accelerators >= wanted]
    failing = next((count for count in tried if count.verdict_au(by) < threshold_percent), shown)
    passed = shown.passed if found is None else found[1][0] > 0 or (None if found[1][1] else False)
    findings = tuple(predictor.findings(wanted))
    return Prediction(
        question=PredictionQuestion(
            workload=workload.model.name,
            accelerator=workload.accelerator,
            sample_divisor=sample_divisor(workload),
            overrides=tuple(overrides),
            hosts=hosts,
            verdict=by,
            threshold_percent=threshold_percent,
        ),
        accelerators=wanted,
        outcome="undecided" if passed is None else "pass" if passed else "fail",
        limited_by=predictor.limited_by(failing),
        max_accelerators=None if found is None else found[0],
        max_accelerators_interval=None if found is None else found[1],
        null_max_accelerators=predictor.null_max(wanted),
        ended_by=None if found is None else predictor.ended_by(*found[1], most),
        counts=tuple(counts),
        source=calibration.source + taken_by_others(calibration.others_mb_per_second),
        curve=calibration.curve,
        saturated=calibration.saturated,
        half_width_percent=calibration.half_width_percent,
        issues=(
            *sentences(findings, _FINDINGS),
            *predictor.notes(wanted),
        ),
        findings=findings,
    )


def _as_at_first(workload: Workload, calibration: Calibration, ranks: int) -> Calibration:
    """Return what `calibration.first_step` means for so many ranks.

    If they demand more than its readers got, and have more readers, these may get up to as much more: a lower bound.
    """
    first = calibration.first_step
    if first is None:
        return calibration
    rate = demand(workload.model.name, workload).samples_per_second or 0.0
    needed = ranks * rate * Model(workload, calibration).mean_sample_bytes / 1e6
    readers = ranks * max(1, workload.reader.read_threads)
    more = max(1.0, readers / first.readers) if needed > first.mb_per_second else 1.0
    return replace(
        calibration,
        curve=flat(more * first.mb_per_second),
        saturated=more == 1.0,
        half_width_percent=max(calibration.half_width_percent, 100 * (1 - 1 / more)),
        step_share=first.step_share,
    )


class _Predictor:
    """Predicts counts of accelerators for one workload and storage, each at most once."""

    def __init__(self, model: Model) -> None:
        self._model, self._workload, self._calibration = model, model.workload, model.calibration
        workload, calibration = model.workload, model.calibration
        self._threshold_percent = 100 * workload.metric.au
        self._by = workload.metric.verdict
        self._speed = max(SPEED_PERCENT, calibration.half_width_percent) / 100
        busy = calibration.busy_cores / calibration.cores_to_share
        # Programs that kept cores busy during the probe may do so during the run. The model can't tell how much that
        # slows the run down; at worst it gets only the other cores.
        self._others = min(1.0, busy) if busy > BUSY_SHARE else 0.0
        self._rate = demand(workload.model.name, workload).samples_per_second or math.inf
        self.saturated = calibration.saturated and not self._others  # else the readers lacked cores as well
        self._counts: dict[int, PredictedCount] = {}

    def limit(self, most: int) -> tuple[int, EndedBy]:
        """Return the largest count that the search tries, and what sets it: "most", or too few "files" or "cores"."""
        limits = self._model.most_ranks() | {"most": most}
        ended_by = min(limits, key=lambda name: limits[name])
        return max(1, int(limits[ended_by])), ended_by

    def ended_by(self, low: int, high: int, most: int) -> EndedBy | None:
        """Return why a search after which `low` surely and `high` possibly pass tried no more; None if some fail."""
        limit, ended_by = self.limit(most)
        if low < high and not self.saturated:
            return "others" if self._calibration.saturated else "storage"
        return ended_by if high >= limit else None

    def count(self, ranks: int) -> PredictedCount:
        """Return the prediction for a count of accelerators."""
        if ranks not in self._counts:
            self._counts[ranks] = self._count(ranks)
        return self._counts[ranks]

    def _count(self, ranks: int) -> PredictedCount:
        """Predict a count: means over its runs, and intervals from runs on a slightly slower and faster storage."""
        run = self._model.run(ranks)
        # Others with other draws, if read times vary and the runs are short enough
        draws = MOST_ROWS // max(1, len(run.rows)) if len(self._calibration.work) > 1 else 1
        runs = [run, *(self._model.run(ranks, seed=seed) for seed in range(1, min(MOST_RUNS, draws)))]
        slower, faster = (
            self._with_share(1 - sign * SHARE_ERROR).run(
                ranks, speed=1 + sign * self._speed, most_rows=INTERVAL_ROWS, shrinks=True, seed=1
            )
            for sign in (-1, 1)
        )
        outcomes = [one.outcome for one in runs]
        outcome = _mean_of(outcomes)
        low_rate, high_rate = (part.samples_per_second * ranks / part.ranks for part in (slower, faster))

        def around(by: str) -> Interval:
            margin = math.hypot(AU_PERCENT, _chance([one.verdict_au(by) for one in outcomes]))
            middle = outcome.verdict_au(by)
            least, most = _around(middle, slower.au(by), faster.au(by), margin)
            return min(least, middle * (1 - self._others)), most if self.saturated else 100.0

        sustained, headline = around("sustained"), around("au")
        rate = outcome.samples_per_second
        rate_margin = math.hypot(rate * RATE_PERCENT / 100, _chance([one.samples_per_second for one in outcomes]))
        rates = _around(rate, low_rate, high_rate, rate_margin, most=math.inf)
        least_rate, most_rate = min(rates[0], rate * (1 - self._others)), rates[1] * self._sooner(run)
        if not self.saturated:
            most_rate = max(most_rate, ranks * self._rate)
        interval = around(self._by)
        inside = interval[0] < self._threshold_percent <= interval[1]
        # A measured run would have no verdict: all steps counted may have been read during the first, uncounted one.
        ahead = self._by == "au" and run.read_ahead and outcome.au_whole_percent < self._threshold_percent
        sample_bytes = self._model.with_files_for(ranks).mean_sample_bytes
        return PredictedCount(
            **asdict(outcome),
            accelerators=ranks,
            au_interval_percent=headline,
            au_sustained_interval_percent=sustained,
            samples_per_second_interval=(least_rate, most_rate),
            passed=None if inside or ahead else outcome.verdict_au(self._by) >= self._threshold_percent,
            null_au_percent=min(100.0, 100 * self._most_rate(ranks) / (ranks * self._rate)),
            needed_mb_per_second=self._threshold_percent / 100 * ranks * self._rate * sample_bytes / 1e6,
        )

    def _with_share(self, factor: float) -> Model:
        """Return the model with a host that delays a step by `factor` times the share found."""
        calibration = self._calibration
        return replace(self._model, calibration=replace(calibration, step_share=factor * calibration.step_share))

    def _sooner(self, run: ModelRun) -> float:
        """Return the factor by which samples/s may be higher with reads served in turn: the first W times sooner."""
        if self._calibration.first_step is not None:
            return 1.0  # the wait for the first batch was measured
        readers = max(1, self._workload.reader.read_threads)
        epochs = len(np.unique(run.rows["epoch"]))
        saved = epochs * run.first_batch_seconds * (1 - 1 / readers)
        seconds = run.training_seconds
        return seconds / max(seconds - saved, seconds / 2)

    def null_max(self, ranks: int) -> int:
        """Return how many pass by the null model, with the files that a count has."""
        return math.floor(self._most_rate(ranks) / (self._threshold_percent / 100 * self._rate))

    def _most_rate(self, ranks: int) -> float:
        """Return the samples/s that the storage gives at most."""
        return self._calibration.left_mb_per_second() * 1e6 / self._model.with_files_for(ranks).mean_sample_bytes

    def search(self, most: int) -> tuple[int, tuple[int, int]]:
        """Return the largest count whose predicted AU passes (0: none), and the largest that surely, possibly pass."""
        limit, _ = self.limit(most)
        middle = self._most_passing(limit, 1.0)
        low = 0
        if 100 * (1 - self._others) >= self._threshold_percent:
            low = min(middle, self._most_passing(limit, 1 - self._speed, near=middle, margin=AU_PERCENT))
        step = max(1, middle // 64)
        while low and not self.count(low).passed:
            low = max(0, low - step)
        while low < middle and self.count(low + 1).passed:
            low += 1
        if not self.saturated:
            return max(middle, low), (low, limit)
        high = max(middle, self._most_passing(limit, 1 + self._speed, near=middle, margin=-AU_PERCENT))
        while high < limit and self.count(high + 1).passed is not False:
            high = min(limit, high + step)
        while high > low and self.count(high).passed is False:
            high -= 1
        return min(max(middle, low), high), (low, high)

    def _most_passing(self, limit: int, speed: float, near: int | None = None, margin: float = 0.0) -> int:
        """Return the largest count that passes by `margin` points of AU. At the limit AU x count is constant."""
        guess = self.null_max(1) if near is None else near
        low, high = 0, limit + 1
        trial = min(max(1, guess), limit)
        wanted, tried = self._threshold_percent + margin, 0
        while high - low > 1:
            run = self._model.run(trial, speed=speed, most_rows=SEARCH_ROWS, shrinks=True)
            au_percent, tried = run.au(self._by), tried + 1
            low, high = (trial, high) if au_percent >= wanted else (low, trial)
            if tried <= PROPORTIONAL_TRIALS and au_percent < NOTHING_PERCENT:
                trial = math.floor(trial * au_percent / wanted)
            else:
                trial = 2 * low if high > limit else (low + high) // 2
            trial = min(max(low + 1, trial), max(low + 1, high - 1), limit)
        return low

    def limited_by(self, count: PredictedCount) -> LimitedBy[What]:
        """Return what limits a count: what (storage, readers or cores) gains most AU over whole epochs."""
        sustained = count.verdict_au("sustained")
        said = f"the AU with {counted(count.accelerators, 'accelerator')} is {sustained:.1f} %"
        if sustained >= NOTHING_PERCENT:
            return LimitedBy(what="nothing", confidence="high", evidence=(said,))
        if self._others >= OTHER_PROGRAMS_PERCENT / 100:  # as a run says there; the finding has the numbers
            return LimitedBy(what="host CPU", confidence="medium", evidence=(said,))
        model = self._model.with_files_for(count.accelerators)

        def run(changed: Model, speed: float = 1.0) -> float:
            trial = changed.run(count.accelerators, speed=speed, most_rows=SEARCH_ROWS, shrinks=True, as_it_is=True)
            return trial.au("rules")

        now, faster = run(model), run(model, FASTER)
        free_cores = replace(model, calibration=replace(model.calibration, cores=None))
        readers, cores = run(model.with_readers(MORE_READERS)), run(free_cores)
        what: What = "storage" if self.saturated else "nothing"
        confidence: Confidence = "high" if self.saturated else "low"
        if max(faster, readers, cores) - now < HELPS_PERCENT:
            if self._workload.train.computation_time.type != "fixed":
                what = "nothing"  # what is lost, is lost to computation times that differ between accelerators
            else:
                endless = model.run(count.accelerators, speed=FASTER, most_rows=SEARCH_ROWS, shrinks=True)
                if endless.au("sustained") - sustained < HELPS_PERCENT:
                    what, confidence = "nothing", "low"  # such as delays of the host, longer than a step
        elif cores - now >= max(HELPS_PERCENT, faster - now):
            what, confidence = "host CPU", "high"
        elif readers - now >= max(HELPS_PERCENT, 0.5 * (faster - now)):  # half suffices: readers cost only a setting
            what, confidence = "loader", "high"
        by_storage, by_readers, by_cores = (max(0.0, percent - now) for percent in (faster, readers, cores))
        gains = (
            f"AU over whole epochs rises by {by_storage:.1f} points with storage {FASTER:g} times as fast, by "
            f"{by_readers:.1f} with {MORE_READERS} times the readers, by {by_cores:.1f} with a core per worker"
        )
        return LimitedBy(what=what, confidence=confidence, evidence=(said, gains))

    def findings(self, ranks: int) -> Iterator[Finding]:
        """Yield what restricts the prediction for a count."""
        calibration = self._calibration
        readers, tried = ranks * max(1, self._workload.reader.read_threads), calibration.curve[-1].readers
        if len(calibration.curve) > 1 and readers > 2 * tried:
            yield Finding.of(OUTSIDE, "caution", pattern="readers", readers=readers, tried=tried)
        if not calibration.saturated:
            yield Finding.of(OUTSIDE, "caution", pattern="saturation")
        planned, calibrated = self._model.mean_sample_bytes, calibration.sample_bytes
        if calibrated and not 0.5 <= planned / calibrated <= 2:  # else another access pattern, with another C(n)
            yield Finding.of(OUTSIDE, "caution", pattern="samples", calibrated_bytes=calibrated, sample_bytes=planned)
        if calibration.busy_cores > BUSY_SHARE * calibration.cores_to_share:
            busy, cores = calibration.busy_cores, calibration.cores_to_share
            yield Finding.of(Code.OTHER_PROGRAM_ON_CORES, "caution", busy_cores=busy, cores=cores)

    def notes(self, ranks: int) -> Iterator[str]:
        """Yield what else a reader must know."""
        yield from self._calibration.notes
        if self._workload.workflow.evaluation:
            yield _EVALUATIONS
        yield from recording_notes(self._workload.recorded, ranks)


def _mean_of(outcomes: Sequence[SimulatedFigures]) -> SimulatedFigures:
    """Return the means over runs; None where a run has none."""
    values = {part.name: [getattr(outcome, part.name) for outcome in outcomes] for part in fields(SimulatedFigures)}
    means: dict[str, Any] = {name: None if None in of else float(np.mean(of)) for name, of in values.items()}
    return SimulatedFigures(**means)


def _chance(values: Sequence[float]) -> float:
    """Return the half width of the 95 % interval of one run; 0 for a single run."""
    count = len(values)
    return float(np.std(values, ddof=1)) * quantile(0.975, count - 1) if count > 1 else 0.0


def _around(middle: float, low: float, high: float, margin: float, most: float = 100.0) -> Interval:
    """Return the interval that holds three values, widened by a margin at both ends."""
    return max(0.0, min(middle, low, high) - margin), min(most, max(middle, low, high) + margin)
