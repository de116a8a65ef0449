"""From a workload and what is known of its storage to the answer: a count's numbers, or the most that pass."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, fields, replace

import numpy as np

from datagen.errors import UserError
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import Calibration
from dlemu.jobs.training.prediction.model_run import MOST_ROWS, Model, ModelRun
from dlemu.jobs.training.prediction.outcome import VERDICT_AUS, SimulatedFigures
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
)
from dlemu.jobs.training.prediction.wording import in_words
from dlemu.jobs.training.wording import recording_notes
from dlemu.metrics.demand import demand
from dlemu.metrics.findings import Finding, Number
from dlemu.metrics.t_interval import quantile
from dlemu.metrics.verdict import Outcome
from dlemu.results.drive import SPEED_PERCENT

MOST = 10_000
"""Accelerators that are tried at most, unless more are asked for: ends the search on a storage that no count fills."""
MOST_RUNS = 8
"""Runs of a storage whose reads differ that are simulated: their mean is predicted, and any one is one of them."""
AU_PERCENT, RATE_PERCENT = 1.0, 1.0
"""Half widths of what the model leaves out, of AU in points and of samples/s in percent."""
SEARCH_ROWS, INTERVAL_ROWS = 60_000, 120_000
"""Rank-steps of simulations whose only use is to find the count or what limits it, and the ends of an interval."""
NOTHING_PERCENT = 98.0
"""AU from which on nothing limits."""
HELPS_PERCENT = 2.0
"""Points of AU that a change must bring to be named as the limit."""
MORE_READERS, FASTER = 4, 2.0  # as many readers as the trial after a run (scaling.TIMES) has
BUSY_SHARE = 0.25
"""Of a host's cores: from there on who else keeps them busy is named, and every lower end allows for them."""


def predict(
    workload: Workload,
    calibration: Calibration,
    *,
    ranks: int | None = None,
    hosts: int = 1,
    most: int = MOST,
    overrides: Sequence[str] = (),
) -> Prediction:
    """Predict so many accelerators; with `ranks` None find the most that pass, `most` at most.

    Raises UserError for what can't be predicted.
    """
    if mean_seconds(workload.train.computation_time) <= 0:
        raise UserError("train.computation_time is 0, so any number of accelerators passes: choose an accelerator")
    began = time.monotonic()
    question = _Question(workload, calibration, hosts=hosts)
    if ranks is not None:
        counts, wanted, found = [question.count(ranks)], ranks, None
    else:
        found = question.search(most)
        middle, (low, high) = found
        wanted = low or max(1, middle)
        one_more = [middle + 1] if middle and middle < question.limit(most) else []
        near = {max(1, number) for number in (middle, low, high, *one_more)}
        counts = [question.count(number) for number in sorted(near)]
    shown = next(count for count in counts if count.accelerators == wanted)
    failing = next(
        (count for count in counts if not question.passes_mean(count) and count.accelerators >= wanted), shown
    )
    limited_by = question.limited_by(failing)
    metric = workload.metric
    fields = {name: getattr(shown, name) for name in PredictedCount.__dataclass_fields__}
    numbers: dict[str, Number] = {"accelerators": wanted, "au_percent": shown.verdict_au(metric.verdict)}
    if found is not None:
        numbers |= {"low": found[1][0], "high": found[1][1]}
    answer = Prediction(
        question=PredictionQuestion(
            workload=workload.model.name,
            accelerator=workload.accelerator,
            overrides=tuple(overrides),
            hosts=hosts,
            verdict=metric.verdict,
            threshold_percent=100 * metric.au,
        ),
        verdict_code=_verdict(question, shown, found),
        verdict_numbers=numbers,
        outcome=_judged(shown.passed if found is None else found[1][0] > 0 or (None if found[1][1] else False)),
        limited_by=limited_by,
        max_accelerators=None if found is None else found[0],
        max_accelerators_interval=None if found is None else found[1],
        counts=tuple(counts),
        calibration=calibration,
        findings=tuple(question.findings(shown)),
        simulated_steps=question.run_of(wanted).simulated_steps,
        seconds=time.monotonic() - began,
        **fields,
    )
    return in_words(answer)


class _Question:
    """A question: the model, and what its answers are judged by."""

    def __init__(self, workload: Workload, calibration: Calibration, *, hosts: int) -> None:
        self._workload, self._calibration = workload, calibration
        self._model = Model(workload, calibration, hosts=hosts)
        self._threshold_percent = 100 * workload.metric.au
        self._by = workload.metric.verdict
        self._speed = max(SPEED_PERCENT, calibration.half_width_percent) / 100
        busy = calibration.busy_cores / calibration.cores
        # Whoever kept these cores busy during the probe may do so during the run. No model knows by how much that slows
        # the run down; at worst it is left with the rest of the host.
        self._others = min(1.0, busy) if busy > BUSY_SHARE else 0.0
        self._rate = demand(workload.model.name, workload).samples_per_second or math.inf
        self.saturated = calibration.saturated
        self._counts: dict[int, PredictedCount] = {}
        self._run_of: dict[int, ModelRun] = {}

    def limit(self, most: int) -> int:
        """Return the largest count that may be tried."""
        return max(1, min(most, self._model.most_ranks()))

    def count(self, ranks: int) -> PredictedCount:
        """Return the numbers of a count, which are predicted once."""
        if ranks not in self._counts:
            self._counts[ranks] = self._count(ranks)
        return self._counts[ranks]

    def run_of(self, ranks: int) -> ModelRun:
        """Return what was simulated of a count that was predicted."""
        return self._run_of[ranks]

    def _count(self, ranks: int) -> PredictedCount:
        """Predict the middle numbers of a count, and those of a storage a little slower and faster."""
        runs = self._runs(ranks)
        run = self._run_of[ranks] = runs[0]
        slower, faster = (
            self._model.run(ranks, speed=1 + sign * self._speed, most_rows=INTERVAL_ROWS, shrinks=True, seed=1)
            for sign in (-1, 1)
        )
        outcome, chance = _mean_and_chance([one.outcome for one in runs])
        low, high = slower.outcome, faster.outcome
        low_rate, high_rate = (part.outcome.samples_per_second * ranks / part.ranks for part in (slower, faster))

        def around(name: str) -> Interval:
            margin = math.hypot(AU_PERCENT, getattr(chance, name))
            middle = getattr(outcome, name)
            least, most = _around(middle, getattr(low, name), getattr(high, name), margin)
            return min(least, middle * (1 - self._others)), most if self._calibration.saturated else 100.0

        sustained, headline = around(VERDICT_AUS["sustained"]), around("au_percent")
        rate = outcome.samples_per_second
        rate_margin = math.hypot(rate * RATE_PERCENT / 100, chance.samples_per_second)
        rates = _around(rate, low_rate, high_rate, rate_margin, most=math.inf)
        least_rate, most_rate = min(rates[0], rate * (1 - self._others)), rates[1] * self._sooner(run)
        if not self._calibration.saturated:
            most_rate = max(most_rate, ranks * self._rate)
        interval = around(VERDICT_AUS[self._by])
        inside = interval[0] < self._threshold_percent <= interval[1]
        # A run would have no verdict: all that it counts was read in a time that it does not count.
        ahead = self._by == "au" and run.read_ahead and outcome.au_whole_percent < self._threshold_percent
        seconds = outcome.training_seconds * run.planned_steps / run.simulated_steps
        return PredictedCount(
            **asdict(replace(outcome, training_seconds=seconds)),
            accelerators=ranks,
            au_interval_percent=headline,
            au_sustained_interval_percent=sustained,
            au_rules_percent=outcome.au_whole_percent,
            samples_per_second_interval=(least_rate, most_rate),
            passed=None if inside or ahead else outcome.verdict_au(self._by) >= self._threshold_percent,
            null_model=self.null_model(ranks),
        )

    def _runs(self, ranks: int) -> list[ModelRun]:
        """Return the run; several, with other draws, where reads differ and it is short enough."""
        first = self._model.run(ranks)
        runs = MOST_ROWS // max(1, len(first.rows)) if len(self._calibration.work) > 1 else 1
        return [first, *(self._model.run(ranks, seed=seed) for seed in range(1, min(MOST_RUNS, runs)))]

    def _sooner(self, run: ModelRun) -> float:
        """Return how many times as many samples/s there are where reads are served whole, one after the other.

        The model has all active reads share the storage. Where they do not, a rank's first batch, of the many that its
        readers begin together, is there that many times sooner, and as much of each epoch's time is saved at most.
        """
        readers = max(1, self._workload.reader.read_threads)
        epochs = len(np.unique(run.rows["epoch"]))
        saved = epochs * run.outcome.time_to_first_batch_seconds * (1 - 1 / readers)
        seconds = run.outcome.training_seconds
        return seconds / max(seconds - saved, seconds / 2)

    def null_model(self, ranks: int) -> NullModel:
        """Return the line of arithmetic of a count."""
        given, wanted = self._model.null_samples_per_second(), ranks * self._rate
        return NullModel(
            max_accelerators=math.floor(given / (self._threshold_percent / 100 * self._rate)),
            au_percent=min(100.0, 100 * given / wanted),
            samples_per_second=min(given, wanted),
        )

    def passes_mean(self, count: PredictedCount) -> bool:
        """Whether the middle value passes."""
        return count.verdict_au(self._by) >= self._threshold_percent

    def search(self, most: int) -> tuple[int, tuple[int, int]]:
        """Return the most accelerators whose middle value passes (0: none), the most that are sure to, and that may.

        A slower and a faster storage show where to look; each count's own interval decides.
        """
        limit = self.limit(most)
        middle = self._most_passing(limit, 1.0)
        low = 0
        if 100 * (1 - self._others) >= self._threshold_percent:
            low = min(middle, self._most_passing(limit, 1 - self._speed, near=middle, margin=AU_PERCENT))
        step = max(1, middle // 64)
        while low and not self.count(low).passed:
            low = max(0, low - step)
        while low < middle and self.count(low + 1).passed:
            low += 1
        if not self._calibration.saturated:
            return max(middle, low), (low, limit)
        high = max(middle, self._most_passing(limit, 1 + self._speed, near=middle, margin=-AU_PERCENT))
        while high < limit and self.count(high + 1).passed is not False:
            high = min(limit, high + step)
        while high > low and self.count(high).passed is False:
            high -= 1
        return min(max(middle, low), high), (low, high)

    def _most_passing(self, limit: int, speed: float, near: int | None = None, margin: float = 0.0) -> int:
        """Return the largest count that passes by a margin: AU falls as the count rises, so halve what is between."""
        guess = self.null_model(1).max_accelerators if near is None else near
        low, high = 0, limit + 1
        trial = min(max(1, guess), limit)
        width = max(1, trial // 16)
        while high - low > 1:
            run = self._model.run(trial, speed=speed, most_rows=SEARCH_ROWS, shrinks=True)
            if run.outcome.verdict_au(self._by) >= self._threshold_percent + margin:
                low = trial
                trial = low + width if high > limit else (low + high) // 2
            else:
                high = trial
                trial = high - width if low == 0 else (low + high) // 2
            width *= 2
            trial = min(max(low + 1, trial), max(low + 1, high - 1), limit)
        return low

    def limited_by(self, count: PredictedCount) -> PredictedLimit:
        """Return what keeps a count from being busy: change one thing, and see what AU of whole epochs gains.

        Not the AU of kept steps, nor the sustained one: more readers read more of a short epoch before these begin.
        """
        au_percent = count.verdict_au("sustained")
        sustained = Finding(Seen.SUSTAINED, numbers={"accelerators": count.accelerators, "au_percent": au_percent})
        if au_percent >= NOTHING_PERCENT:
            return PredictedLimit(what="nothing", seen=(sustained,))
        now, readers, cores, faster = (
            model.run(
                count.accelerators, speed=speed, most_rows=SEARCH_ROWS, shrinks=True, as_it_is=True
            ).outcome.au_whole_percent
            for model, speed in (
                (self._model, 1.0),
                (self._model.with_readers(MORE_READERS), 1.0),
                (self._model.with_cores(math.inf), 1.0),
                (self._model, FASTER),
            )
        )
        gains = Finding(
            Seen.GAINS,
            numbers={
                "faster": FASTER,
                "faster_points": faster - now,
                "more_readers": MORE_READERS,
                "readers_points": readers - now,
                "cores_points": cores - now,
            },
        )
        limit: Limit = "storage"
        if cores - now >= max(HELPS_PERCENT, faster - now):
            limit = "host CPU"
        elif readers - now >= max(HELPS_PERCENT, 0.5 * (faster - now)):  # half will do: readers are but a setting
            limit = "loader"
        return PredictedLimit(what=limit, seen=(sustained, gains))

    def findings(self, count: PredictedCount) -> Iterator[Finding]:
        """Yield what a reader must know."""
        calibration, workload = self._calibration, self._workload
        readers = count.accelerators * max(1, workload.reader.read_threads)
        tried = calibration.curve[-1].readers
        if len(calibration.curve) > 1 and readers > 2 * tried:
            yield Finding(Issue.READERS_NEVER_TRIED, "caution", {"readers": readers, "tried": tried})
        if not calibration.saturated:
            yield Finding(Issue.NOT_SATURATED, "caution")
        if calibration.sample_bytes:
            planned = self._model.mean_sample_bytes
            if not 0.5 <= planned / calibration.sample_bytes <= 2:  # beyond, it is another pattern with another C(n)
                sizes: dict[str, Number] = {"calibrated_bytes": calibration.sample_bytes, "sample_bytes": planned}
                yield Finding(Issue.OTHER_SAMPLES, "caution", sizes)
        if calibration.busy_cores > BUSY_SHARE * calibration.cores:
            cores: dict[str, Number] = {"busy_cores": calibration.busy_cores, "cores": calibration.cores}
            yield Finding(Issue.BUSY_CORES, "caution", cores)
        if workload.workflow.checkpoint:
            yield Finding(Issue.CHECKPOINTS_LEFT_OUT, "caution")
        run = self.run_of(count.accelerators)
        if run.simulated_steps < run.planned_steps:
            steps: dict[str, Number] = {"simulated_steps": run.simulated_steps, "planned_steps": run.planned_steps}
            yield Finding(Issue.STEPS_LEFT_OUT, "caution", steps)
        for note in recording_notes(workload.recorded, count.accelerators):
            yield Finding(Issue.NOTE, "caution", {"text": note})


def _mean_and_chance(outcomes: Sequence[SimulatedFigures]) -> tuple[SimulatedFigures, SimulatedFigures]:
    """Return the means of several runs, and how far one of them lies from these in 19 of 20; 0 of a single one."""
    values = np.array([astuple(outcome) for outcome in outcomes])
    count = len(values)
    spread = values.std(axis=0, ddof=1) * quantile(0.975, count - 1) if count > 1 else np.zeros(values.shape[1])
    names = [field.name for field in fields(SimulatedFigures)]
    mean, chance = (dict(zip(names, each.tolist(), strict=True)) for each in (values.mean(axis=0), spread))
    return SimulatedFigures(**mean), SimulatedFigures(**chance)


def _around(middle: float, low: float, high: float, margin: float, most: float = 100.0) -> Interval:
    """Return the interval from the least to the largest of three values, wider by a margin."""
    return max(0.0, min(middle, low, high) - margin), min(most, max(middle, low, high) + margin)


def _judged(passed: bool | None) -> Outcome:
    return "undecided" if passed is None else "pass" if passed else "fail"


def _verdict(question: _Question, shown: PredictedCount, found: tuple[int, tuple[int, int]] | None) -> PredictedVerdict:
    if found is None:
        passed = {True: PredictedVerdict.PASSES, False: PredictedVerdict.FAILS, None: PredictedVerdict.TOO_CLOSE}
        return passed[shown.passed]
    _, (low, high) = found
    if not high:
        return PredictedVerdict.NONE_PASSES
    if low == high:
        return PredictedVerdict.MOST
    return PredictedVerdict.MOST_OR_FEW_MORE if question.saturated else PredictedVerdict.MOST_OR_MORE
