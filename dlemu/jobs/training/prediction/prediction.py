"""What was predicted, as a frozen, typed value: predict.json, and what `dlemu predict --json` prints.

docs/prediction.md describes it. Fields may be added within a schema version; none changes its meaning or disappears.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from dlemu.jobs.training.prediction.calibration import Calibration
from dlemu.jobs.training.prediction.outcome import SimulatedFigures
from dlemu.metrics.findings import Finding, Number
from dlemu.metrics.verdict import Outcome
from dlemu.results.answer_files import ANSWER_VERSION

PREDICT = "predict.json"
PREDICTED = "predicted"
"""What the line of an answer begins with."""


class PredictedVerdict(StrEnum):
    """Codes of the answer: the first three of a count, the others of the most that pass."""

    PASSES = "passes"
    FAILS = "fails"
    TOO_CLOSE = "too_close"
    NONE_PASSES = "none_passes"
    MOST = "most"
    MOST_TRIED = "most_tried"
    MOST_OR_MORE = "most_or_more"
    MOST_OR_FEW_MORE = "most_or_few_more"


class Issue(StrEnum):
    """Codes of what a reader must know."""

    READERS_NEVER_TRIED = "readers_never_tried"
    NOT_SATURATED = "not_saturated"
    OTHER_SAMPLES = "other_samples"
    BUSY_CORES = "busy_cores"
    FILES_ASSUMED = "files_assumed"
    CHECKPOINTS_LEFT_OUT = "checkpoints_left_out"
    STEPS_LEFT_OUT = "steps_left_out"
    NOTE = "note"


class Seen(StrEnum):
    """Codes of the evidence for what limits."""

    SUSTAINED = "sustained"
    GAINS = "gains"


Limit = Literal["storage", "loader", "host CPU", "nothing"]
Interval = tuple[float, float]
"""Lowest and highest value; the truth is expected between them in 9 of 10 predictions or more."""


@dataclass(frozen=True, kw_only=True)
class NullModel:
    """One line of arithmetic, to be better than: accelerators share what the storage gives at most, and nothing else.

    AU = min(100 %, X / (N x rate)), samples/s = min(X, N x rate), most = floor(X / (threshold x rate)), where X are the
    samples/s that the storage gives at most and `rate` those that one accelerator takes when it never waits.
    """

    max_accelerators: int
    au_percent: float
    samples_per_second: float


@dataclass(frozen=True, kw_only=True)
class PredictedLimit:
    """What keeps the accelerators from being busy, found by changing one thing at a time."""

    what: Limit
    evidence: tuple[str, ...] = ()
    """`seen` as sentences."""
    seen: tuple[Finding, ...] = ()
    """Empty in older files."""


@dataclass(frozen=True, kw_only=True)
class PredictedCount(SimulatedFigures):
    """So many accelerators."""

    accelerators: int
    au_interval_percent: Interval
    au_sustained_interval_percent: Interval
    au_rules_percent: float
    """`au_whole_percent` by its older name."""
    samples_per_second_interval: Interval
    passed: bool | None
    """By `metric.verdict`; None where the interval holds the threshold."""
    null_model: NullModel
    needed_mb_per_second: float | None = None
    """MB/s (1e6 bytes) that these accelerators read at the AU of the threshold; None in older files."""


@dataclass(frozen=True, kw_only=True)
class PredictionQuestion:
    """The question."""

    workload: str
    accelerator: str
    """Empty when none was chosen."""
    overrides: tuple[str, ...] = ()
    hosts: int = 1
    verdict: str = "sustained"
    """The AU that is held against the threshold."""
    threshold_percent: float = 90.0


@dataclass(frozen=True, kw_only=True)
class Prediction(PredictedCount):
    """The answer: the numbers of the count requested, or else of the most that pass (1 where none does)."""

    schema_version: int = ANSWER_VERSION
    question: PredictionQuestion
    verdict: str = ""
    """The answer as a sentence."""
    verdict_code: PredictedVerdict | None = None
    """The same as a code; None in older files."""
    verdict_numbers: dict[str, Number] = field(default_factory=dict)
    """Those of the sentence: `low` and `high` (the largest counts that surely and possibly pass), `ended_by`, ..."""
    outcome: Outcome | None = None
    """The same as the exit status says it: of the count, else whether one at least passes; None in older files."""
    limited_by: PredictedLimit
    """Of the count, or of the first that does not pass."""
    max_accelerators: int | None = None
    """The most that pass; None where a count was requested."""
    max_accelerators_interval: tuple[int, int] | None = None
    counts: tuple[PredictedCount, ...]
    """Every count that was simulated to its end, smallest first."""
    calibration: Calibration
    issues: tuple[str, ...] = ()
    """`findings` as sentences."""
    findings: tuple[Finding, ...] = ()
    """What a reader must know."""
    simulated_steps: int
    """Of each accelerator; fewer than planned where the run is long."""
    seconds: float
    """Time that the simulations took."""
