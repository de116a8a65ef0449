"""The contents of size.json, sweep.json and compare.json (docs/answers.md); field names are the JSON keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from dlemu.metrics.findings import LimitedBy
from dlemu.metrics.limit import Limit
from dlemu.metrics.t_interval import Estimate, estimate
from dlemu.metrics.verdict import HOST_LIMITS, Attempt
from dlemu.results.answer_files import Answer
from dlemu.results.figures import CONFIDENCE, Difference, JobFigures
from dlemu.results.kinds import catalogue_of
from dlemu.results.parts import OutcomeField, TargetFields, VerdictField
from dlemu.runner.run_list import StudyAnswer

SIZE, SWEEP, COMPARE = "size.json", "sweep.json", "compare.json"
T = TypeVar("T")
YEAR_HOURS = 8760.0
PLANNED_EPOCHS = 100  # to train one model, as in KIOXIA's white paper on the CM7 and DLIO
HOST_CAUSES = ("host", "loader", *HOST_LIMITS)  # limits other than the storage (docs/metrics.md, section 6)


def edge(attempts: Iterable[tuple[T, bool]]) -> tuple[T | None, T | None]:
    """Return the last value that passes and the first that fails, or None: (2, 4) for [(2, True), (4, False)]."""
    last_passing = None
    for value, passes in attempts:
        if not passes:
            return last_passing, value
        last_passing = value
    return last_passing, None


@dataclass(frozen=True, kw_only=True)
class RunsQuestion:
    """Settings of all runs."""

    overrides: tuple[str, ...] = ()
    """The overrides, as the user gave them."""
    launcher: str = ""
    settings_digest: str
    """Of all settings, those in the workload's file included."""


@dataclass(frozen=True, kw_only=True)
class Question(TargetFields, RunsQuestion):
    """A search's workload, settings and threshold."""

    threshold_percent: float = 90.0
    cached: bool = False


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study."""

    folder: str
    """The run's folder, in that of the study; empty in a comparison."""
    figures: JobFigures | None = None
    """None for a run that failed."""


@dataclass(frozen=True, kw_only=True)
class Trial(StudyRun):
    """One run with a number of accelerators; `figures` are of the whole run, its start and end included."""

    window_au_percent: tuple[float, ...] = ()
    """The sustained AU (docs/sizing.md) in each window of the trial's steady part: their mean decides."""
    seconds: float
    """Wall-clock time, including the start of the processes."""
    mb_per_accelerator: float = 0.0
    """MB/s that an accelerator of this run requests when it never waits: from the bytes really read."""
    limited_by: Limit | None = None
    """As in the run's summary.json."""
    page_cache_warning: str | None = None
    """The warning of the run's screen when the page cache may have served some or all reads."""
    figures: JobFigures = field()  # unlike a study's other runs it did not fail

    @property
    def accelerators(self) -> int:
        return self.figures.ranks

    @property
    def sustained(self) -> Estimate:
        """The AU that decides, with its half width."""
        return estimate(np.array(self.window_au_percent), CONFIDENCE)

    @property
    def mb_per_second(self) -> float:
        """1e6 bytes/s that the loaders read in the whole trial."""
        return self.figures.mean("app_mb_per_second") or 0.0


@dataclass(frozen=True, kw_only=True)
class CountResult(Attempt):
    """All trials with the same number of accelerators."""

    au_sustained_percent: float
    """The mean over the trials."""
    half_width_percent: float
    trials: int
    """Number of trials."""


@dataclass(frozen=True, kw_only=True)
class FullSize:
    """What the storage would feed with samples of real size, without the workload's scale."""

    mb_per_accelerator: float
    """Rate that one accelerator then needs."""
    accelerators: int
    """How many the storage would feed, at the highest rate of the read probe or a trial."""


@dataclass(frozen=True, kw_only=True)
class SizeAnswer(OutcomeField, VerdictField, StudyAnswer):
    """How many accelerators a storage feeds: size.json. It passes if `at_least` accelerators do, by default one."""

    question: Question
    max_accelerators: int
    """The largest count shown to pass; 0 when none."""
    at_least: int | None = None
    """The count given by `--at-least`."""
    limited_by: LimitedBy[str]
    """What keeps the next count from passing, with evidence and advice of the surest of the deciding trials.

    `what` may also be `host`: can't run more ranks; `count`: no more tried; `not known`.
    """
    wanted_mb_per_second: float
    """MB/s that `max_accelerators` + 1 accelerators need from the storage, for an AU of `threshold_percent`."""
    storage_could_feed: int | None = None
    """Where the host was the limit: accelerators that the storage could feed, at its highest rate; None otherwise, and
    where the demand of one is not known, or other programs slowed down the reads."""
    full_size: FullSize | None = None
    """None at full size, and where that is not known: counts are then of real accelerators."""
    probe_mb_per_second: float
    """Rate of the read probe."""
    counts: tuple[CountResult, ...]
    """Smallest first."""
    trials: tuple[Trial, ...]
    """In the order in which they ran."""
    naive_seconds: float
    """Nominal time of running every count, up to the smallest that fails, at full length."""

    @property
    def edge(self) -> tuple[CountResult | None, CountResult | None]:
        """The largest count with a mean AU at or above the threshold, and the next one; either may be undecided."""
        threshold = self.question.threshold_percent
        return edge((count, count.au_sustained_percent >= threshold) for count in self.counts)

    @property
    def failing(self) -> CountResult | None:
        return self.edge[1]

    @property
    def too_close_to_tell(self) -> list[CountResult]:
        return [count for count in self.edge if count is not None and count.passed is None]

    @property
    def storage_mb_per_second(self) -> float:
        """The highest rate of the read probe or a trial."""
        return max([self.probe_mb_per_second, *(trial.mb_per_second for trial in self.trials)])

    @property
    def is_limited_by_host(self) -> bool:
        """Whether this host is the limit, not the storage: more may pass on another one."""
        return self.limited_by.what in HOST_CAUSES


@dataclass(frozen=True, kw_only=True)
class SweepQuestion(RunsQuestion):
    """A sweep's settings."""

    most_of: str = ""
    """The setting whose largest passing value was searched for; empty for a sweep."""


@dataclass(frozen=True, kw_only=True)
class SweepPoint(StudyRun):
    """One run of a sweep."""

    settings: dict[str, str]
    """Key -> this run's value, for the keys that were given several values."""
    failure: str | None = None
    """The run's message; None when it completed."""
    exit_status: int | None = None
    """Exit status of a run that failed; else None."""


@dataclass(frozen=True, kw_only=True)
class SweepAnswer(StudyAnswer):
    """The same run over several values: sweep.json."""

    question: SweepQuestion
    points: tuple[SweepPoint, ...]
    """The last key changes fastest."""

    @property
    def edge(self) -> tuple[SweepPoint | None, SweepPoint | None]:
        """Of a search: the run with the largest value that passed, and the run with the next value, which did not."""
        by_value = sorted(self.points, key=lambda point: float(point.settings[self.question.most_of]))
        return edge((point, bool(point.figures and point.figures.passed)) for point in by_value)

    @property
    def exit_status(self) -> int:
        """The highest exit status of the points: 0 if all of them completed, whether they passed or not."""
        return max((point.exit_status or 0 for point in self.points), default=0)


class YearPlan(NamedTuple):
    """The measured times extrapolated to a year (8760 h) of training one model after another; pairs are (A, B)."""

    hours_per_model: tuple[float, float]  # of PLANNED_EPOCHS epochs
    models_per_year: tuple[float, float]
    days_saved_per_year: float  # by A, on the models that B trains in a year; below 0 if A takes longer


@dataclass(frozen=True, kw_only=True)
class RunPair:
    """Two runs with equal settings."""

    settings: dict[str, str]
    a: JobFigures
    b: JobFigures
    metrics: dict[str, Difference]
    """By name: the metrics that both sides have."""
    not_comparable: tuple[str, ...] = ()
    """Differences between the runs that make their times incomparable, as phrases."""
    from_memory: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """Phase -> whether memory served A and B, in place of the storage; without phases in which neither was."""

    @property
    def plan(self) -> YearPlan | None:
        """The plan of a year; None if the runs are not comparable, or one has no time, whole epochs or verdict."""
        hours = []
        for side in (self.a, self.b):
            seconds = side.mean("total_seconds")
            is_judged = side.outcome != "no verdict"  # as of a run that memory served, or that the host limited
            if self.not_comparable or side.cut_steps or not (is_judged and seconds and side.epochs):
                return None
            hours.append(PLANNED_EPOCHS * seconds / side.epochs / 3600)
        a, b = hours
        return YearPlan((a, b), (YEAR_HOURS / a, YEAR_HOURS / b), YEAR_HOURS / 24 * (1 - a / b))

    def compares_storage(self, phase: str) -> bool:
        """Return whether the times of a phase are comparable: False if memory served one side, storage the other."""
        from_memory_a, from_memory_b = self.from_memory.get(phase, (False, False))
        return from_memory_a == from_memory_b


@dataclass(frozen=True, kw_only=True)
class ComparedSide:
    """One storage of a comparison."""

    name: str
    """Its folder, or its drive in a sweep over drives."""
    accelerators_fed: int | None = None
    """The answer of a search, or the largest number of accelerators among the runs that passed; None without any."""
    may_feed_more: bool = False
    """One more was not shown to fail, or not because of the storage: `accelerators_fed` is a lower bound."""
    about: dict[str, str] = field(default_factory=dict)
    """Where, on what and how it was measured, as text; empty when the folders of its runs are gone."""
    unpaired: tuple[SweepPoint, ...] = ()
    """Its runs that have no counterpart; of a search, all counts."""


@dataclass(frozen=True, kw_only=True)
class Comparison(VerdictField, Answer):
    """Two storages side by side, A and B: compare.json.

    Its issues are what differs apart from the storage, and the warnings of both sides' runs.
    """

    verdict: str = field()
    kind: str
    """Kind of the jobs that were compared: `training`, `checkpoint`, ..."""
    runs: tuple[RunPair, ...]
    """Empty when two searches (`dlemu size`) are compared."""
    not_comparable: tuple[str, ...] = ()
    """What makes two searches incomparable, as phrases; of runs see each of `runs`."""
    sides: tuple[ComparedSide, ComparedSide]

    @property
    def main_pair(self) -> RunPair | None:
        """The pair with the most ranks (the last of several), preferably with a headline metric; None without runs."""
        names = {metric.name for metric in catalogue_of(self.kind).headlines}
        with_headline = [pair for pair in self.runs if not names.isdisjoint(pair.metrics)]
        last_first = reversed(with_headline or self.runs)  # `max` returns the first of equal pairs
        return max(last_first, key=lambda pair: pair.a.ranks + pair.b.ranks, default=None)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the two searches, or the runs of the main pair, are not comparable, as phrases."""
        return self.not_comparable or (self.main_pair.not_comparable if self.main_pair else ())
