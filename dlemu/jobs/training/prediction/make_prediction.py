"""Predicts AU and samples/s on a calibrated storage: for one count of accelerators, or for the largest that passes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, fields, replace
from typing import Any

import numpy as np

from datagen.errors import UserError
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import Calibration
from dlemu.jobs.training.prediction.curve import flat
from dlemu.jobs.training.prediction.model_run import MOST_ROWS, Model, ModelRun
from dlemu.jobs.training.prediction.prediction import (
    Interval,
    Issue,
    Limit,
    NullModel,
    PredictedCount,
    PredictedLimit,
    PredictedVerdict,
    Prediction,
    PredictionQuestion,
    Seen,
    SimulatedFigures,
    in_words,
)
from dlemu.jobs.training.wording import recording_notes
from dlemu.metrics.demand import demand, sample_divisor
from dlemu.metrics.findings import Finding, Number
from dlemu.metrics.limit import OTHER_PROGRAMS_PERCENT
from dlemu.metrics.t_interval import quantile
from dlemu.results.drive import SPEED_PERCENT

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
    predictor = _Predictor(workload, calibration, hosts=hosts, assumes_files=assumes_files)
    if ranks is not None:
        counts, wanted, found = [predictor.count(ranks)], ranks, None
    else:
        found = predictor.search(most)
        middle, (low, high) = found
        wanted = low or max(1, middle)
        one_more = [middle + 1] if middle and middle < predictor.limit(most)[0] else []
        edge = {max(1, number) for number in (middle, low, high, *one_more)}
        counts = [predictor.count(number) for number in sorted(edge)]
    shown = next(count for count in counts if count.accelerators == wanted)
    failing = next(
        (count for count in counts if not predictor.passes_mean(count) and count.accelerators >= wanted), shown
    )
    limited_by = predictor.limited_by(failing)
    metric = workload.metric
    fields = {name: getattr(shown, name) for name in PredictedCount.__dataclass_fields__}
    numbers: dict[str, Number] = {"accelerators": wanted, "au_percent": shown.verdict_au(metric.verdict)}
    passed = shown.passed if found is None else found[1][0] > 0 or (None if found[1][1] else False)
    if found is None:
        code = {True: PredictedVerdict.PASSES, False: PredictedVerdict.FAILS, None: PredictedVerdict.TOO_CLOSE}[passed]
    else:
        code = _verdict(predictor, *found[1], most)
        numbers |= {"low": found[1][0], "high": found[1][1]}
        limit, ended_by = predictor.limit(most)
        if code == PredictedVerdict.MOST_OR_MORE:
            numbers |= {"ended_by": "others"} if calibration.saturated else {}
        elif found[1][1] >= limit:
            numbers["ended_by"] = ended_by
    answer = Prediction(
        question=PredictionQuestion(
            workload=workload.model.name,
            accelerator=workload.accelerator,
            sample_divisor=sample_divisor(workload),
            overrides=tuple(overrides),
            hosts=hosts,
            verdict=metric.verdict,
            threshold_percent=100 * metric.au,
        ),
        verdict_code=code,
        verdict_numbers=numbers,
        outcome="undecided" if passed is None else "pass" if passed else "fail",
        limited_by=limited_by,
        max_accelerators=None if found is None else found[0],
        max_accelerators_interval=None if found is None else found[1],
        counts=tuple(counts),
        calibration=calibration,
        findings=tuple(predictor.findings(shown)),
        **fields,
    )
    return in_words(answer)


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

    def __init__(self, workload: Workload, calibration: Calibration, *, hosts: int, assumes_files: bool) -> None:
        self._workload, self._calibration, self._hosts = workload, calibration, hosts
        self._model = Model(workload, calibration, hosts=hosts, assumes_files=assumes_files)
        self._threshold_percent = 100 * workload.metric.au
        self._by = workload.metric.verdict
        self._speed = max(SPEED_PERCENT, calibration.half_width_percent) / 100
        busy = calibration.busy_cores / calibration.cores_to_share
        # Programs that kept cores busy during the probe may do so during the run. The model can't tell how much that
        # slows the run down; at worst it gets only the other cores.
        self._others = min(1.0, busy) if busy > BUSY_SHARE else 0.0
        self._rate = demand(workload.model.name, workload).samples_per_second or math.inf
        self.saturated = calibration.saturated and not self._others  # else the readers lacked cores as well
        delay, step = calibration.costs.step_seconds, mean_seconds(workload.train.computation_time)
        self._slow_host: dict[str, Number] = {"delay_ms": 1e3 * delay, "step_ms": 1e3 * step} if delay >= step else {}
        self._counts: dict[int, PredictedCount] = {}
        self._run_of: dict[int, ModelRun] = {}

    def limit(self, most: int) -> tuple[int, str]:
        """Return the largest count that the search tries, and what sets it: "most", or too few "files" or "cores"."""
        limits = {"most": most, **self._model.most_ranks()}
        ended_by = min(limits, key=lambda name: limits[name])
        return max(1, int(limits[ended_by])), ended_by

    def count(self, ranks: int) -> PredictedCount:
        """Return the prediction for a count of accelerators."""
        if ranks not in self._counts:
            self._counts[ranks] = self._count(ranks)
        return self._counts[ranks]

    def run_of(self, ranks: int) -> ModelRun:
        """Return the first simulated run of a count that was predicted before."""
        return self._run_of[ranks]

    def _count(self, ranks: int) -> PredictedCount:
        """Predict a count: means over its runs, and intervals from runs on a slightly slower and faster storage."""
        run = self._run_of[ranks] = self._model.run(ranks)
        # Others with other draws, if read times vary and the runs are short enough
        draws = MOST_ROWS // max(1, len(run.rows)) if len(self._calibration.work) > 1 else 1
        runs = [run, *(self._model.run(ranks, seed=seed) for seed in range(1, min(MOST_RUNS, draws)))]
        slower, faster = (
            self._with_share(1 - sign * SHARE_ERROR).run(
                ranks, speed=1 + sign * self._speed, most_rows=INTERVAL_ROWS, shrinks=True, seed=1
            )
            for sign in (-1, 1)
        )
        outcome, chance = _mean_and_chance([one.outcome for one in runs])
        if self._slow_host:
            outcome = replace(outcome, au_dlio_percent=None)
        low_rate, high_rate = (part.samples_per_second * ranks / part.ranks for part in (slower, faster))

        def around(by: str) -> Interval:
            margin = math.hypot(AU_PERCENT, chance.verdict_au(by))
            middle = outcome.verdict_au(by)
            least, most = _around(middle, slower.au(by), faster.au(by), margin)
            return min(least, middle * (1 - self._others)), most if self.saturated else 100.0

        sustained, headline = around("sustained"), around("au")
        rate = outcome.samples_per_second
        rate_margin = math.hypot(rate * RATE_PERCENT / 100, chance.samples_per_second)
        rates = _around(rate, low_rate, high_rate, rate_margin, most=math.inf)
        least_rate, most_rate = min(rates[0], rate * (1 - self._others)), rates[1] * self._sooner(run)
        if not self.saturated:
            most_rate = max(most_rate, ranks * self._rate)
        interval = around(self._by)
        inside = interval[0] < self._threshold_percent <= interval[1]
        # A measured run would have no verdict: all steps counted may have been read during the first, uncounted one.
        ahead = self._by == "au" and run.read_ahead and outcome.au_whole_percent < self._threshold_percent
        seconds = outcome.training_seconds * run.planned_steps / run.simulated_steps
        sample_bytes = self._model.with_files_for(ranks).mean_sample_bytes
        return PredictedCount(
            **asdict(replace(outcome, training_seconds=seconds)),
            accelerators=ranks,
            au_interval_percent=headline,
            au_sustained_interval_percent=sustained,
            samples_per_second_interval=(least_rate, most_rate),
            passed=None if inside or ahead else outcome.verdict_au(self._by) >= self._threshold_percent,
            null_model=self.null_model(ranks),
            needed_mb_per_second=self._threshold_percent / 100 * ranks * self._rate * sample_bytes / 1e6,
        )

    def _with_share(self, factor: float) -> Model:
        """Return the model with a host that delays a step by `factor` times the share found."""
        calibration = self._calibration
        if not calibration.step_share:
            return self._model
        other = replace(calibration, step_share=factor * calibration.step_share)
        return Model(self._workload, other, hosts=self._hosts, assumes_files=self._model.assumes_files)

    def _sooner(self, run: ModelRun) -> float:
        """Return the factor by which samples/s may be higher with reads served in turn: the first W times sooner."""
        if self._calibration.first_step is not None:
            return 1.0  # the wait for the first batch was measured
        readers = max(1, self._workload.reader.read_threads)
        epochs = len(np.unique(run.rows["epoch"]))
        saved = epochs * run.outcome.time_to_first_batch_seconds * (1 - 1 / readers)
        seconds = run.outcome.training_seconds
        return seconds / max(seconds - saved, seconds / 2)

    def null_model(self, ranks: int) -> NullModel:
        """Return the null model of a count: speed / demand."""
        model = self._model.with_files_for(ranks)
        given, wanted = model.null_samples_per_second(), ranks * self._rate
        return NullModel(
            max_accelerators=math.floor(given / (self._threshold_percent / 100 * self._rate)),
            au_percent=min(100.0, 100 * given / wanted),
            samples_per_second=min(given, wanted),
        )

    def passes_mean(self, count: PredictedCount) -> bool:
        """Return whether the predicted AU reaches the threshold, whatever its interval."""
        return count.verdict_au(self._by) >= self._threshold_percent

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
        guess = self.null_model(1).max_accelerators if near is None else near
        low, high = 0, limit + 1
        trial = min(max(1, guess), limit)
        width = max(1, trial // 16)
        wanted, tried = self._threshold_percent + margin, 0
        while high - low > 1:
            run = self._model.run(trial, speed=speed, most_rows=SEARCH_ROWS, shrinks=True)
            count, au_percent, tried = trial, run.au(self._by), tried + 1
            if au_percent >= wanted:
                low = trial
                trial = low + width if high > limit else (low + high) // 2
            else:
                high = trial
                trial = high - width if low == 0 else (low + high) // 2
            width *= 2
            if tried <= PROPORTIONAL_TRIALS and au_percent < NOTHING_PERCENT:
                trial = math.floor(count * au_percent / wanted)
            trial = min(max(low + 1, trial), max(low + 1, high - 1), limit)
        return low

    def limited_by(self, count: PredictedCount) -> PredictedLimit:
        """Return what limits a count: the change (storage, readers or cores) that gains most AU over whole epochs."""
        au_percent = count.verdict_au("sustained")
        sustained = Finding.of(Seen.SUSTAINED, accelerators=count.accelerators, au_percent=au_percent)
        if au_percent >= NOTHING_PERCENT:
            return PredictedLimit(what="nothing", seen=(sustained,))
        if self._others >= OTHER_PROGRAMS_PERCENT / 100:
            return PredictedLimit(what="host CPU", seen=(sustained,))  # as a run says there; BUSY_CORES has the numbers
        model = self._model.with_files_for(count.accelerators)
        now, readers, cores, faster = (
            changed.run(count.accelerators, speed=speed, most_rows=SEARCH_ROWS, shrinks=True, as_it_is=True).au("rules")
            for changed, speed in (
                (model, 1.0),
                (model.with_readers(MORE_READERS), 1.0),
                (model.with_cores(math.inf), 1.0),
                (model, FASTER),
            )
        )
        gains = Finding.of(
            Seen.GAINS,
            faster=FASTER,
            faster_points=faster - now,
            more_readers=MORE_READERS,
            readers_points=readers - now,
            cores_points=cores - now,
        )
        limit: Limit = "storage" if self.saturated else "unknown"
        if max(faster, readers, cores) - now < HELPS_PERCENT:
            if self._workload.train.computation_time.type != "fixed":
                limit = "nothing"  # what is lost, is lost to computation times that differ between accelerators
            else:
                endless = model.run(count.accelerators, speed=FASTER, most_rows=SEARCH_ROWS, shrinks=True)
                if endless.au("sustained") - au_percent < HELPS_PERCENT:
                    limit = "unknown"  # such as the host's delays, where they take longer than a step
        elif cores - now >= max(HELPS_PERCENT, faster - now):
            limit = "host CPU"
        elif readers - now >= max(HELPS_PERCENT, 0.5 * (faster - now)):  # half suffices: readers cost only a setting
            limit = "loader"
        return PredictedLimit(what=limit, seen=(sustained, gains))

    def findings(self, count: PredictedCount) -> Iterator[Finding]:
        """Yield the issues: what a reader of the prediction must know."""
        calibration, workload = self._calibration, self._workload
        readers = count.accelerators * max(1, workload.reader.read_threads)
        tried = calibration.curve[-1].readers
        if len(calibration.curve) > 1 and readers > 2 * tried:
            yield Finding.of(Issue.READERS_NEVER_TRIED, "caution", readers=readers, tried=tried)
        if not calibration.saturated:
            yield Finding(Issue.NOT_SATURATED, "caution")
        yield from calibration.findings
        if calibration.sample_bytes:
            planned = self._model.mean_sample_bytes
            if not 0.5 <= planned / calibration.sample_bytes <= 2:  # else another access pattern, with another C(n)
                yield Finding.of(
                    Issue.OTHER_SAMPLES, "caution", calibrated_bytes=calibration.sample_bytes, sample_bytes=planned
                )
        if calibration.busy_cores > BUSY_SHARE * calibration.cores_to_share:
            yield Finding.of(
                Issue.BUSY_CORES, "caution", busy_cores=calibration.busy_cores, cores=calibration.cores_to_share
            )
        configured = workload.dataset.num_files_train
        files = self._model.with_files_for(count.accelerators).workload.dataset.num_files_train
        if files > configured:
            yield Finding.of(
                Issue.FILES_ASSUMED, "caution", accelerators=count.accelerators, files=files, configured=configured
            )
        if workload.workflow.checkpoint:
            yield Finding(Issue.CHECKPOINTS_LEFT_OUT, "caution")
        if workload.workflow.evaluation:
            yield Finding.of(Issue.NOTE, "caution", text=_EVALUATIONS)
        run = self.run_of(count.accelerators)
        if run.simulated_steps < run.planned_steps:
            yield Finding.of(
                Issue.STEPS_LEFT_OUT, "caution", simulated_steps=run.simulated_steps, planned_steps=run.planned_steps
            )
        if self._slow_host:
            yield Finding(Issue.HOST_SLOWER_THAN_STEP, "caution", self._slow_host)
        for note in recording_notes(workload.recorded, count.accelerators):
            yield Finding.of(Issue.NOTE, "caution", text=note)


def _mean_and_chance(outcomes: Sequence[SimulatedFigures]) -> tuple[SimulatedFigures, SimulatedFigures]:
    """Return the means over runs, and the half widths of the 95 % interval of one run (0 for a single run)."""
    values = np.array([astuple(outcome) for outcome in outcomes], float)  # None becomes NaN
    count = len(values)
    spread = values.std(axis=0, ddof=1) * quantile(0.975, count - 1) if count > 1 else np.zeros(values.shape[1])
    return _figures(values.mean(axis=0).tolist()), _figures(spread.tolist())


def _figures(values: Sequence[float]) -> SimulatedFigures:
    """Return figures by the order of their fields; NaN: undefined."""
    names = [field.name for field in fields(SimulatedFigures)]
    known: dict[str, Any] = {
        name: None if math.isnan(value) else value for name, value in zip(names, values, strict=True)
    }
    return SimulatedFigures(**known)


def _around(middle: float, low: float, high: float, margin: float, most: float = 100.0) -> Interval:
    """Return the interval that holds three values, widened by a margin at both ends."""
    return max(0.0, min(middle, low, high) - margin), min(most, max(middle, low, high) + margin)


def _verdict(predictor: _Predictor, low: int, high: int, most: int) -> PredictedVerdict:
    """Return the verdict of a search up to `most`; `low` surely pass, `high` possibly."""
    if not high:
        return PredictedVerdict.NONE_PASSES
    if not predictor.saturated and low < high:
        return PredictedVerdict.MOST_OR_MORE
    if low < high:
        return PredictedVerdict.MOST_OR_FEW_MORE
    return PredictedVerdict.MOST if high < predictor.limit(most)[0] else PredictedVerdict.MOST_TRIED
