"""size.json, sweep.json and compare.json, as frozen, typed values; field names are the JSON's keys.

docs/sizing.md describes them; `dlemu.results.answer_files` writes them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import msgspec

from datagen.errors import UserError
from dlemu.metrics.findings import Finding
from dlemu.metrics.limit import Limit
from dlemu.metrics.verdict import Outcome
from dlemu.results.answer_files import ANSWER_VERSION, read_answer
from dlemu.results.compared import Conditions, Difference
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import catalogue_of
from dlemu.studies.older import upgrade_comparison, upgrade_sweep

SIZE, SWEEP, COMPARE = "size.json", "sweep.json", "compare.json"
OLDER_COMPARE = "compare_checkpoints.json"
"""Of two runs of checkpoints, as older versions named it."""


# size.json


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question; two searches with equal questions may share their trials."""

    workload: str
    accelerator: str
    """Empty when none was chosen; so `scale`."""
    scale: str = ""
    overrides: tuple[str, ...] = ()
    """The user's own words."""
    launcher: str = ""
    threshold_percent: float = 90.0
    confidence_percent: float = 95.0
    trial_seconds: float = 120.0
    cached: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one run of a count of accelerators showed. AU is the sustained one (docs/sizing.md), in percent."""

    accelerators: int
    folder: str
    """The run's folder, in the folder of the search."""
    au_percent: float
    half_width_percent: float
    settled: bool
    """It could end before its last step because the verdict was clear at the confidence requested."""
    stretch_au_percent: tuple[float, ...] = ()
    """The series behind it: one value for each window of time."""
    seconds: float
    """Wall-clock time, start of the processes included."""
    au_headline_percent: float | None = None
    """`au_percent` of the run's own summary, and further metrics of it."""
    au_rules_percent: float | None = None
    prefetch_credit_percent: float | None = None
    ceiling_au_percent: float | None = None
    samples_per_second: float
    app_mb_per_second: float
    """1e6 bytes/s that the loaders read."""
    device_mb_per_second: float | None = None
    device_bytes_percent_of_app: float | None = None
    mb_per_accelerator: float = 0.0
    """MB/s that an accelerator of this run requests when it never waits: from the bytes really read."""
    training_seconds: float | None = None
    limited_by: Limit | None = None
    """As the run's summary says."""
    page_cache_warning: str | None = None
    """What the run's summary says when storage was not, or only in part, what was read."""


@dataclass(frozen=True, kw_only=True)
class CountResult:
    """All trials of one count of accelerators together."""

    accelerators: int
    au_percent: float
    half_width_percent: float
    settled: bool
    """The threshold lies outside the interval."""
    passed: bool | None
    """None while the verdict is open."""
    trials: int
    """How many."""


class Bracket(msgspec.Struct, frozen=True, kw_only=True):
    """The two counts between which the answer lies. A struct, for `pass` is no name that a dataclass may use."""

    passing: CountResult | None = msgspec.field(name="pass")
    """The largest count that is shown to pass."""
    failing: CountResult | None = msgspec.field(name="fail")
    """The smallest count above that fails, or whose verdict is open."""


@dataclass(frozen=True, kw_only=True)
class SizeLimit:
    """What keeps the next count from passing."""

    what: str
    """As metrics/limit.py names it; or `host`: it can't hold more ranks; `count`: no more were tried; `not known`."""
    evidence: tuple[str, ...] = ()
    """`seen` as sentences."""
    seen: tuple[Finding, ...] = ()
    """What the failing trials saw and what they advise, or why no more were tried; empty in older files."""


@dataclass(frozen=True, kw_only=True)
class NextAccelerator:
    """What one accelerator more would take of the storage."""

    accelerators: int
    wanted_mb_per_second: float
    most_delivered_mb_per_second: float | None
    """Of all trials."""


@dataclass(frozen=True, kw_only=True)
class HostOnly:
    """The host gave out first."""

    storage_could_feed: int | None
    """By the most that the read probe or a trial got; None where nothing is known of what an accelerator needs."""


@dataclass(frozen=True, kw_only=True)
class PredictedAu:
    """What was predicted of one count."""

    accelerators: int
    au_percent: float
    """Sustained."""
    au_interval_percent: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PredictedSize:
    """What the model of docs/prediction.md predicted from the read probe, before any trial."""

    max_accelerators: int
    max_accelerators_interval: tuple[int, int]
    null_max_accelerators: int
    """What the read probe's speed / (threshold x demand) says, and nothing else."""
    counts: tuple[PredictedAu, ...]
    """Those that were tried, and those that the model looked at, smallest first."""

    def au(self, accelerators: int) -> PredictedAu | None:
        """Return what was predicted of a count; None where nothing was."""
        return next((count for count in self.counts if count.accelerators == accelerators), None)


@dataclass(frozen=True, kw_only=True)
class SizeAnswer:
    """How many accelerators a storage feeds: size.json."""

    schema_version: int = ANSWER_VERSION
    complete: bool
    """False while the search goes on, or when it was interrupted."""
    verdict: str = ""
    """The answer as a sentence; empty, as `passed` is None, while the search goes on."""
    max_accelerators: int
    """The largest count shown to pass; 0 when none."""
    at_least: int | None = None
    """The count given by `--at-least`."""
    passed: bool | None = None
    """Whether so many (without `at_least`: one) pass."""
    outcome: Outcome | None = None
    """The same as the exit status says it; None while the search goes on, and in results of older versions."""
    question: Question
    hosts: tuple[str, ...] = ()
    threshold_percent: float
    """AU at which a count passes."""
    too_close_to_tell: tuple[int, ...] = ()
    """Counts at the edge whose verdict is still open."""
    limited_by: SizeLimit
    edge: Bracket
    for_one_more: NextAccelerator
    host_only: HostOnly | None = None
    """None where the storage gave out first."""
    probe_mb_per_second: float
    """What the read probe got."""
    storage_mb_per_second: float = 0.0
    """The most that the read probe or a trial got."""
    predicted: PredictedSize | None = None
    """None in results of older versions, and where nothing could be predicted."""
    counts: tuple[CountResult, ...]
    """Smallest first."""
    issues: tuple[str, ...] = ()
    """What a reader must know, as sentences."""
    trials: tuple[Trial, ...]
    """In the order in which they ran."""
    seconds: float
    """Time of all trials."""
    naive_seconds: float
    """Nominal time of running every count up to the edge at full length."""

    def trials_of(self, accelerators: int) -> tuple[Trial, ...]:
        """Return the trials of a count."""
        return tuple(trial for trial in self.trials if trial.accelerators == accelerators)


# sweep.json


@dataclass(frozen=True, kw_only=True)
class SweepQuestion:
    """The question; two sweeps with equal questions may share their points."""

    overrides: tuple[str, ...] = ()
    """The user's own words."""
    launcher: str = ""
    most_of: str = ""
    """The setting of which the most that passes was searched for; empty of a sweep."""


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One run of a sweep."""

    settings: dict[str, str]
    """Key -> value, of the keys that have several."""
    folder: str
    """The run's folder, in the folder of the sweep."""
    failure: str | None = None
    """The run's message; None when it completed."""
    exit_status: int | None = None
    """Of a run that failed."""
    figures: JobFigures | None = None
    """None for a run that failed."""


@dataclass(frozen=True, kw_only=True)
class SweepAnswer:
    """The same run over several values: sweep.json."""

    schema_version: int = 2
    complete: bool
    """False while the sweep goes on, or when it was interrupted."""
    question: SweepQuestion
    points: tuple[SweepPoint, ...]
    """The last key changes fastest."""

    @property
    def exit_status(self) -> int:
        """The highest of the points' exit statuses: 0 when all of them completed, whether they passed or not."""
        return max((point.exit_status or 0 for point in self.points), default=0)


# compare.json


@dataclass(frozen=True, kw_only=True)
class YearPlan:
    """What the times come to when models are trained one after the other; of A and B."""

    epochs: int
    """Of one model."""
    hours_per_model: tuple[float, float]
    models_per_year: tuple[float, float]
    days_saved_per_year: float
    """What B trains in a year takes A so many days less."""


@dataclass(frozen=True, kw_only=True)
class RunPair:
    """Two runs with equal settings; pairs are of A and B."""

    settings: dict[str, str]
    ranks: tuple[int, int]
    epochs: tuple[int, int] = (0, 0)
    """(0, 0) where an older dlemu compared."""
    passed: tuple[bool | None, bool | None]
    limited_by: dict[str, tuple[str | None, str | None]]
    """By phase; `run` of jobs that have one alone."""
    metrics: dict[str, Difference]
    """By name; those that both sides have."""
    plan: YearPlan | None
    """None where a run did not complete or has no epochs, and of runs that are not comparable."""
    not_comparable: tuple[str, ...] = ()
    """In what the runs differ that makes a difference in time say nothing of the storages, as phrases."""

    def time(self, metric: str) -> Difference | None:
        """Return the difference in a time for equal work: of an epoch where one side ran more of them.

        None where a run did not complete.
        """
        total, (a, b) = self.metrics.get(metric), self.epochs
        if a == b or total is None or total.difference_percent is None:
            return total
        percent = 100 * ((1 + total.difference_percent / 100) * b / a - 1)
        width = None if total.half_width_percent is None else total.half_width_percent * b / a
        return Difference(
            a=total.a / a,
            a_half_width=None if total.a_half_width is None else total.a_half_width / a,
            b=total.b / b,
            b_half_width=None if total.b_half_width is None else total.b_half_width / b,
            difference_percent=percent,
            half_width_percent=width,
            distinct=None if width is None else abs(percent) > width,
        )


@dataclass(frozen=True, kw_only=True)
class Economy:
    """What a storage comes to; None for what was not given or not measured."""

    accelerators_fed: int | None
    """Of a search, or the largest count of the runs that passed."""
    gb_per_second: float | None
    """1e9 bytes/s that it delivered to them."""
    cost_per_accelerator: float | None
    gb_per_second_per_watt: float | None
    watts_per_accelerator: float | None = None
    years: float | None = None
    """Of the two below."""
    energy_kwh_per_accelerator: float | None = None
    """What the storage takes for each accelerator fed, day and night."""
    cost_over_years_per_accelerator: float | None = None
    """Price and energy for each accelerator fed; where no price of energy was given, None."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """What was measured of a run, or of all trials of a count."""

    settings: dict[str, str] = field(default_factory=dict)
    figures: JobFigures


@dataclass(frozen=True, kw_only=True)
class ComparedSide:
    """One storage of a comparison."""

    name: str
    workload: str
    runs: tuple[ComparedRun, ...]
    about: Conditions | None
    """None when no run is there any more."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two storages side by side: compare.json. Pairs are of A and B."""

    schema_version: int = 2
    kind: str
    """Of the jobs that were compared."""
    a: str
    """Names: folders, or the drives of one sweep."""
    b: str
    verdict: str
    """The answer as a sentence."""
    runs: tuple[RunPair, ...]
    """None of two searches."""
    economy: tuple[Economy, Economy] | None = None
    """None of jobs without accelerators that are fed."""
    sides: tuple[ComparedSide, ComparedSide]
    issues: tuple[str, ...] = ()
    """What beside the storage differs, as sentences."""

    @property
    def main_pair_number(self) -> int | None:
        """The place in `runs` of the pair that says most of the storages; None where no headline is known of both.

        The last of those with the most ranks.
        """
        names = [metric.name for metric in catalogue_of(self.kind).headlines]
        known = [number for number, pair in enumerate(self.runs) if any(name in pair.metrics for name in names)]
        return max(known, key=lambda number: (sum(self.runs[number].ranks), number), default=None)

    @property
    def main_pair(self) -> RunPair | None:
        """The pair that says most of the storages."""
        return None if self.main_pair_number is None else self.runs[self.main_pair_number]


def read_sweep(folder: str) -> SweepAnswer | None:
    """Return the sweep that a folder holds, None where it holds none; raises UserError for a damaged one."""
    return read_answer(folder, SWEEP, SweepAnswer, upgrade_sweep)


def read_comparison(folder: str) -> Comparison:
    """Return what `dlemu compare` left; raises UserError where it is not there, or damaged."""
    named = (read_answer(folder, name, Comparison, upgrade_comparison) for name in (COMPARE, OLDER_COMPARE))
    answer = next((found for found in named if found is not None), None)
    path = os.path.join(folder, COMPARE)
    if answer is None:
        raise UserError(f"{path} does not exist; name the folder of a comparison")
    if not any(side.runs for side in answer.sides):
        raise UserError(f"{path} is damaged (neither side has a run), or of another version of dlemu")
    return answer
