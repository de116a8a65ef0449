"""Predicts AU and samples/s on a calibrated storage: for one count of accelerators, or for the largest that passes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from datagen.errors import UserError
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import Calibration, flat
from dlemu.jobs.training.prediction.model_run import MAX_ROWS, Model, ModelRun
from dlemu.jobs.training.prediction.prediction import (
    FINDINGS,
    NO_COMPUTATION,
    EndedBy,
    Interval,
    PredictedCount,
    Prediction,
    PredictionQuestion,
    SimulatedFigures,
    mean_figures,
)
from dlemu.jobs.training.wording import recording_notes
from dlemu.metrics.demand import demand, sample_divisor
from dlemu.metrics.findings import Code, Confidence, Finding, LimitedBy
from dlemu.metrics.limit import OTHER_PROGRAMS_PERCENT, What
from dlemu.metrics.t_interval import quantile
from dlemu.results.drive import OUTSIDE, SPEED_PERCENT, others_phrase
from dlemu.results.wording import count as counted
from dlemu.results.wording import sentences

MAX_ACCELERATORS = 10_000  # default limit of a search: ends it on a storage that no number of accelerators saturates
MAX_RUNS = 8  # runs simulated with one number of accelerators, each with other random read times: for mean and spread
AU_PERCENT, RATE_PERCENT = 1.0, 1.0  # half widths of the model's own error: of AU in points, of samples/s in percent
SEARCH_ROWS, INTERVAL_ROWS = 60_000, 120_000  # maximum rank-steps (ranks x steps) in a search, and for an interval
UNLIMITED_PERCENT = 98.0  # AU from which on nothing is reported as the limit
MIN_GAIN_PERCENT = 2.0  # points of AU that removing a limit must gain for it to be reported
READER_FACTOR, SPEED_FACTOR = 4, 2.0  # simulated to find the limit; trials after a run (`scaling`) have 4, too
BUSY_SHARE = 0.25  # of the cores; if other programs keep more busy, there is a finding, and intervals reach lower


class Passing(NamedTuple):
    """Largest numbers of accelerators that pass, 0 for none: by the predicted AU, and by the ends of its interval."""

    predicted: int
    certain: int  # passes even with the AU at the low end
    possible: int  # passes with the AU at the high end


def predict(
    workload: Workload,
    calibration: Calibration,
    *,
    ranks: int | None = None,
    hosts: int = 1,
    most: int = MAX_ACCELERATORS,
    assumes_files: bool = False,
) -> Prediction:
    """Predict for `ranks` accelerators; if None, find the largest number, up to `most`, that passes. Raises UserError.

    With `assumes_files` each number has as many files as it needs, even if the dataset has fewer.
    """
    if mean_seconds(workload.train.computation_time) <= 0:
        raise UserError(NO_COMPUTATION)
    if ranks is not None:
        calibration = _with_first_step(workload, calibration, ranks)
    predictor = _Predictor(Model(workload, calibration, hosts=hosts, assumes_files=assumes_files), most)
    passing: Passing | None = None  # of a search
    if ranks is not None:
        accelerators, counts = ranks, [predictor.count(ranks)]
        passes, may_pass = counts[0].passed, counts[0].passed is not False
    else:
        passing = predictor.search()
        accelerators = passing.certain or max(1, passing.predicted)
        counts = predictor.counts_around(passing)
        passes, may_pass = passing.certain > 0, passing.possible > 0
    threshold, verdict = 100 * workload.metric.au, workload.metric.verdict
    failing = [one for one in counts if one.accelerators >= accelerators and one.verdict_au(verdict) < threshold]
    findings, notes = tuple(predictor.findings(accelerators)), list(recording_notes(workload.recorded, accelerators))
    if workload.workflow.evaluation:
        notes.append("evaluations are not included: no AU counts them, but they lengthen the run")
    return Prediction(
        question=PredictionQuestion(
            workload=workload.model.name,
            accelerator=workload.accelerator,
            sample_divisor=sample_divisor(workload),
            hosts=hosts,
            verdict=verdict,
            threshold_percent=threshold,
        ),
        accelerators=accelerators,
        outcome="pass" if passes else "undecided" if may_pass else "fail",
        limited_by=predictor.limited_by(failing[0] if failing else predictor.count(accelerators)),
        null_max_accelerators=predictor.null_max(accelerators),
        counts=tuple(counts),
        source=calibration.source + others_phrase(calibration.others_mb_per_second),
        curve=calibration.curve,
        half_width_percent=calibration.half_width_percent,
        issues=(*sentences(findings, FINDINGS), *notes),
        findings=findings,
        max_accelerators=passing.predicted if passing else None,
        max_accelerators_interval=(passing.certain, passing.possible) if passing else None,
        ended_by=predictor.ended_by(passing) if passing else None,
    )


def _with_first_step(workload: Workload, calibration: Calibration, ranks: int) -> Calibration:
    """Return the calibration of a storage as fast as in the measured run's first steps, if these were measured."""
    if (first_step := calibration.first_step) is None:
        return calibration
    # More readers than in the measured run may get more, at most in proportion to their number. This is assumed if they
    # need more; the interval then reaches down to the measured throughput.
    rate = demand(workload.model.name, workload).samples_per_second or 0.0
    needed = ranks * rate * Model(workload, calibration).mean_sample_bytes / 1e6
    readers = ranks * max(1, workload.reader.read_threads)
    factor = max(1.0, readers / first_step.readers) if needed > first_step.mb_per_second else 1.0
    return replace(
        calibration,
        curve=flat(factor * first_step.mb_per_second),
        saturated=factor == 1.0,
        half_width_percent=max(calibration.half_width_percent, 100 * (1 - 1 / factor)),
        step_share=first_step.step_share,
    )


class _Predictor:
    """Predicts numbers of accelerators (*counts*) for one workload and storage, each count at most once."""

    def __init__(self, model: Model, most: int) -> None:
        workload, calibration = model.workload, model.calibration
        self._model, self._workload, self._calibration = model, workload, calibration
        self._threshold_percent = 100 * workload.metric.au
        self._verdict = workload.metric.verdict  # which AU is compared with the threshold
        self._speed_error = max(SPEED_PERCENT, calibration.half_width_percent) / 100
        # Programs that kept cores busy during the probe may do so during the run. The model can't tell how much they
        # slow it down; in the worst case the run gets only the other cores.
        busy_share = calibration.busy_cores / calibration.cores_to_share
        self._others_share = min(1.0, busy_share) if busy_share > BUSY_SHARE else 0.0
        self._demand = demand(workload.model.name, workload).samples_per_second or math.inf  # of one accelerator
        # Readers that shared their cores with other programs could not reach the storage's limit.
        self._saturated = calibration.saturated and not self._others_share
        self.count = cache(self._count)
        limits = model.max_ranks() | {"most": most}
        self._limit_reason = min(limits, key=lambda name: limits[name])
        self._max_count = max(1, int(limits[self._limit_reason]))  # the largest count that a search tries

    def search(self) -> Passing:
        """Return the largest counts that pass: found by bisection on the AU, then by the intervals of nearby counts."""
        predicted = self._most_passing(1.0, near=self.null_max(1))
        certain = 0
        if 100 * (1 - self._others_share) >= self._threshold_percent:
            slower = self._most_passing(1 - self._speed_error, near=predicted, margin_percent=AU_PERCENT)
            certain = min(predicted, slower)
        stride = max(1, predicted // 64)  # among many accelerators not every count is simulated
        while certain and not self.count(certain).passed:
            certain = max(0, certain - stride)
        while certain < predicted and self.count(certain + 1).passed:
            certain += 1
        if not self._saturated:
            return Passing(predicted, certain, self._max_count)
        faster = self._most_passing(1 + self._speed_error, near=predicted, margin_percent=-AU_PERCENT)
        possible = max(predicted, faster)
        while possible < self._max_count and self.count(possible + 1).passed is not False:
            possible = min(self._max_count, possible + stride)
        while possible > certain and self.count(possible).passed is False:
            possible -= 1
        return Passing(min(predicted, possible), certain, possible)

    def _most_passing(self, speedup: float, *, near: int, margin_percent: float = 0.0) -> int:
        """Return the largest count whose AU reaches threshold + margin on a storage `speedup` times as fast; else 0."""
        required_percent = self._threshold_percent + margin_percent
        low, high, trials = 0, self._max_count + 1, 0  # `low` passes, `high` fails
        trial = min(max(1, near), self._max_count)
        while high - low > 1:
            au_percent = self._model.run(trial, speedup=speedup, max_rows=SEARCH_ROWS, shrinks=True).au(self._verdict)
            trials += 1
            if au_percent >= required_percent:
                low = trial
            else:
                high = trial
            if trials <= 4 and au_percent < UNLIMITED_PERCENT:
                trial = math.floor(trial * au_percent / required_percent)  # on a full storage AU x count is constant
            elif high > self._max_count:
                trial = 2 * low
            else:
                trial = (low + high) // 2
            trial = min(max(low + 1, trial), max(low + 1, high - 1), self._max_count)
        return low

    def counts_around(self, passing: Passing) -> list[PredictedCount]:
        """Return the predictions for the counts that a search found, and for the first that fails by its AU."""
        ranks = {passing.predicted, passing.certain}
        if self._saturated:  # else `possible` is where the search ended, and was not simulated
            ranks.add(passing.possible)
        if 0 < passing.predicted < self._max_count:
            ranks.add(passing.predicted + 1)
        return [self.count(number) for number in sorted({max(1, number) for number in ranks})]

    def ended_by(self, passing: Passing) -> EndedBy | None:
        """Return why a search tried no more accelerators; None if it found a count that fails."""
        if passing.certain < passing.possible and not self._saturated:
            return "others" if self._calibration.saturated else "storage"
        return self._limit_reason if passing.possible >= self._max_count else None

    def _count(self, ranks: int) -> PredictedCount:
        """Predict a count: means over its runs, and intervals from runs on a slightly slower and faster storage."""
        run = self._model.run(ranks)
        # If read times are drawn at random, several runs are simulated, as far as MAX_ROWS rank-steps allow.
        max_runs = MAX_ROWS // max(1, len(run.rows)) if len(self._calibration.work) > 1 else 1
        runs = [run, *(self._model.run(ranks, seed=seed) for seed in range(1, min(MAX_RUNS, max_runs)))]
        figures = [simulated.figures for simulated in runs]
        mean = mean_figures(figures)
        slower, faster = self._run_with_errors(ranks, -1), self._run_with_errors(ranks, 1)

        def au_interval(verdict: str) -> Interval:
            margin = math.hypot(AU_PERCENT, _draws_half_width([one.verdict_au(verdict) for one in figures]))
            au = mean.verdict_au(verdict)
            low, high = _interval_around(au, slower.au(verdict), faster.au(verdict), margin)
            return min(low, au * (1 - self._others_share)), high if self._saturated else 100.0

        low, high = au_interval(self._verdict)
        too_close = low < self._threshold_percent <= high
        # If all steps that count may have been read ahead, a measured run would get no verdict, either.
        read_ahead = self._verdict == "au" and run.read_ahead and mean.au_whole_percent < self._threshold_percent
        sample_bytes = self._model.with_files_for(ranks).mean_sample_bytes
        return PredictedCount(
            **asdict(mean),
            accelerators=ranks,
            au_interval_percent=au_interval("au"),
            au_sustained_interval_percent=au_interval("sustained"),
            samples_per_second_interval=self._rate_interval(ranks, run, figures, slower, faster),
            passed=None if too_close or read_ahead else mean.verdict_au(self._verdict) >= self._threshold_percent,
            null_au_percent=min(100.0, 100 * self._max_samples_per_second(ranks) / (ranks * self._demand)),
            needed_mb_per_second=self._threshold_percent / 100 * ranks * self._demand * sample_bytes / 1e6,
        )

    def _rate_interval(
        self, ranks: int, run: ModelRun, figures: Sequence[SimulatedFigures], slower: ModelRun, faster: ModelRun
    ) -> Interval:
        """Return the interval of samples/s around the mean of all runs' figures; `run` is the first."""
        rates = [one.samples_per_second for one in figures]
        rate = float(np.mean(rates))
        low, high = _interval_around(
            rate,
            slower.samples_per_second * ranks / slower.ranks,  # a shrunk run has a fraction of the ranks
            faster.samples_per_second * ranks / faster.ranks,
            math.hypot(rate * RATE_PERCENT / 100, _draws_half_width(rates)),
            most=math.inf,
        )
        if self._calibration.first_step is None:  # else the wait for the first batch was measured
            # In the model, all first reads end together. A storage that serves the W readers of a rank one after the
            # other delivers the first batch W times sooner.
            readers, seconds = max(1, self._workload.reader.read_threads), run.training_seconds
            saved_seconds = len(np.unique(run.rows["epoch"])) * run.first_batch_seconds * (1 - 1 / readers)
            high *= seconds / max(seconds - saved_seconds, seconds / 2)
        if not self._saturated:
            high = max(high, ranks * self._demand)
        return min(low, rate * (1 - self._others_share)), high

    def _run_with_errors(self, ranks: int, sign: int) -> ModelRun:
        """Simulate storage faster by its error and a host with less delay (`sign` 1), or slower and with more (-1)."""
        calibration = self._calibration
        # The delay is halved, or 1.5 times as long: it may be a fixed time, which is twice the share of a shorter step.
        step_share = (1 - sign * 0.5) * calibration.step_share
        model = replace(self._model, calibration=replace(calibration, step_share=step_share))
        return model.run(ranks, speedup=1 + sign * self._speed_error, max_rows=INTERVAL_ROWS, shrinks=True, seed=1)

    def null_max(self, ranks: int) -> int:
        """Return how many pass by the null model (`PredictedCount.null_au_percent`), with the files of `ranks`."""
        return math.floor(self._max_samples_per_second(ranks) / (self._threshold_percent / 100 * self._demand))

    def _max_samples_per_second(self, ranks: int) -> float:
        """Return the storage's highest rate in samples/s, with the files of `ranks` ranks."""
        return self._calibration.available_mb_per_second() * 1e6 / self._model.with_files_for(ranks).mean_sample_bytes

    def limited_by(self, count: PredictedCount) -> LimitedBy[What]:
        """Return what limits a count: storage, readers or cores, whichever raises the AU most when it is removed."""
        au_percent = count.verdict_au(self._verdict)
        au_text = f"the AU with {counted(count.accelerators, 'accelerator')} is {au_percent:.1f} %"
        if au_percent >= UNLIMITED_PERCENT:
            return LimitedBy(what="nothing", confidence="high", evidence=(au_text,))
        if self._others_share >= OTHER_PROGRAMS_PERCENT / 100:  # as a measured run reports; a finding has the numbers
            return LimitedBy(what="host CPU", confidence="medium", evidence=(au_text,))
        model, ranks = self._model.with_files_for(count.accelerators), count.accelerators

        def au_of(changed: Model, speedup: float = 1.0, by: str = "rules") -> float:
            return changed.run(ranks, speedup=speedup, max_rows=SEARCH_ROWS, shrinks=True).au(by)

        now = au_of(model)
        storage_gain = max(0.0, au_of(model, SPEED_FACTOR) - now)
        reader_gain = max(0.0, au_of(model.with_readers(READER_FACTOR)) - now)
        core_gain = max(0.0, au_of(replace(model, calibration=replace(model.calibration, cores=None))) - now)
        what: What = "storage" if self._saturated else "nothing"
        confidence: Confidence = "high" if self._saturated else "low"
        if max(storage_gain, reader_gain, core_gain) < MIN_GAIN_PERCENT:
            if self._workload.train.computation_time.type != "fixed":
                what = "nothing"  # the computation times differ, so accelerators wait for each other
            elif au_of(model, SPEED_FACTOR, self._verdict) - au_percent < MIN_GAIN_PERCENT:
                what, confidence = "nothing", "low"  # perhaps delays of the host that are longer than a step
        elif core_gain >= max(MIN_GAIN_PERCENT, storage_gain):
            what, confidence = "host CPU", "high"
        elif reader_gain >= max(MIN_GAIN_PERCENT, 0.5 * storage_gain):  # half suffices: readers cost only a setting
            what, confidence = "loader", "high"
        gains_text = (
            f"AU over whole epochs rises by {storage_gain:.1f} points with storage {SPEED_FACTOR:g} times as fast, by "
            f"{reader_gain:.1f} with {READER_FACTOR} times the readers, by {core_gain:.1f} with a core per worker"
        )
        return LimitedBy(what=what, confidence=confidence, evidence=(au_text, gains_text))

    def findings(self, ranks: int) -> Iterator[Finding]:
        """Yield the reasons why the prediction for `ranks` accelerators is less certain than its interval says."""
        calibration = self._calibration
        readers, tried = ranks * max(1, self._workload.reader.read_threads), calibration.curve[-1].readers
        if len(calibration.curve) > 1 and readers > 2 * tried:
            yield Finding.of(OUTSIDE, "caution", pattern="readers", readers=readers, tried=tried)
        if not calibration.saturated:
            yield Finding.of(OUTSIDE, "caution", pattern="saturation")
        planned, calibrated = self._model.mean_sample_bytes, calibration.sample_bytes
        if calibrated and not 0.5 <= planned / calibrated <= 2:  # reads of another size have another curve
            yield Finding.of(OUTSIDE, "caution", pattern="samples", calibrated_bytes=calibrated, sample_bytes=planned)
        if self._others_share:
            busy, cores = calibration.busy_cores, calibration.cores_to_share
            yield Finding.of(Code.OTHER_PROGRAM_ON_CORES, "caution", busy_cores=busy, cores=cores)


def _draws_half_width(values: Sequence[float]) -> float:
    """Return the half width of the 95 % interval of one run's value, from runs with different draws; 0 for one run."""
    count = len(values)
    return float(np.std(values, ddof=1)) * quantile(0.975, count - 1) if count > 1 else 0.0


def _interval_around(middle: float, low: float, high: float, margin: float, most: float = 100.0) -> Interval:
    """Return the interval that holds the three values, widened by a margin at both ends, within 0 and `most`."""
    return max(0.0, min(middle, low, high) - margin), min(most, max(middle, low, high) + margin)
