"""The answer of `dlemu predict` for training: the content of predict.json, also printed by `--json`.

docs/prediction.md explains it. Within a schema version fields may be added; none changes its meaning or disappears.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dlemu.jobs.training.prediction.calibration import Calibration
from dlemu.jobs.training.prediction.outcome import SimulatedFigures
from dlemu.metrics.findings import Finding, Number
from dlemu.metrics.verdict import Outcome
from dlemu.results.answer_files import ANSWER_VERSION

PREDICT = "predict.json"
PREDICTED = "predicted"
"""First word of the answer's line."""


class PredictedVerdict(StrEnum):
    """Codes of the answer: three for a requested number of accelerators, the others for the highest that passes."""

    PASSES = "passes"
    FAILS = "fails"
    TOO_CLOSE = "too_close"
    NONE_PASSES = "none_passes"
    MOST = "most"
    MOST_TRIED = "most_tried"
    MOST_OR_MORE = "most_or_more"
    MOST_OR_FEW_MORE = "most_or_few_more"


class Issue(StrEnum):
    """Codes of findings that restrict what the prediction means."""

    READERS_NEVER_TRIED = "readers_never_tried"
    NOT_SATURATED = "not_saturated"
    OTHER_SAMPLES = "other_samples"
    LINE_IGNORED = "line_ignored"
    BUSY_CORES = "busy_cores"
    FILES_ASSUMED = "files_assumed"
    CHECKPOINTS_LEFT_OUT = "checkpoints_left_out"
    STEPS_LEFT_OUT = "steps_left_out"
    HOST_SLOWER_THAN_STEP = "host_slower_than_step"
    NOTE = "note"


class Seen(StrEnum):
    """Codes of the evidence for what limits the accelerators."""

    SUSTAINED = "sustained"
    GAINS = "gains"


Limit = Literal["storage", "loader", "host CPU", "nothing", "unknown"]  # unknown: none of them known
Interval = tuple[float, float]
"""Lowest and highest value; in at least 9 of 10 predictions the measured value is expected between them."""


@dataclass(frozen=True, kw_only=True)
class NullModel:
    """A baseline for the prediction: N accelerators share the storage's highest throughput, and nothing else matters.

    AU = min(100 %, X / (N x rate)), samples/s = min(X, N x rate), maximum = floor(X / (threshold x rate)), where X is
    the highest throughput of the storage in samples/s, and `rate` the samples/s of an accelerator that never waits.
    """

    max_accelerators: int
    au_percent: float
    samples_per_second: float


@dataclass(frozen=True, kw_only=True)
class PredictedLimit:
    """What limits the accelerators' utilisation, found by simulating one improvement at a time."""

    what: Limit
    evidence: tuple[str, ...] = ()
    """`seen` as sentences."""
    seen: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class PredictedCount(SimulatedFigures):
    """The prediction for one number of accelerators."""

    accelerators: int
    au_interval_percent: Interval
    au_sustained_interval_percent: Interval
    samples_per_second_interval: Interval
    passed: bool | None
    """By `metric.verdict`; None where the threshold is within the interval."""
    null_model: NullModel
    needed_mb_per_second: float
    """MB/s (1e6 bytes) that these accelerators read at the AU of the threshold."""


@dataclass(frozen=True, kw_only=True)
class PredictionQuestion:
    """What was to be predicted."""

    workload: str
    accelerator: str
    """Empty when the settings name none."""
    overrides: tuple[str, ...] = ()
    hosts: int = 1
    verdict: str = "sustained"
    """`metric.verdict`: which AU is compared with the threshold."""
    threshold_percent: float = 90.0


@dataclass(frozen=True, kw_only=True)
class Prediction(PredictedCount):
    """The answer: the figures of the requested number of accelerators, else of the highest that passes (1 if none)."""

    schema_version: int = ANSWER_VERSION
    question: PredictionQuestion
    verdict: str = ""
    """The answer as a sentence."""
    verdict_code: PredictedVerdict
    """The same as a code."""
    verdict_numbers: dict[str, Number]
    """Numbers in the sentence: `low` and `high` (how many pass for certain, and how many may), `ended_by`, ..."""
    outcome: Outcome
    """The same as in the exit status: for the requested number, else whether any passes."""
    limited_by: PredictedLimit
    """What limits the requested number, or the first that does not pass."""
    max_accelerators: int | None = None
    """The highest number that passes; None where a number was requested."""
    max_accelerators_interval: tuple[int, int] | None = None
    counts: tuple[PredictedCount, ...]
    """Every number of accelerators that was simulated completely, smallest first."""
    calibration: Calibration
    issues: tuple[str, ...] = ()
    """`findings` as sentences."""
    findings: tuple[Finding, ...] = ()
    """What restricts the meaning of the prediction."""
    simulated_steps: int
    """Steps per accelerator; fewer than planned where the run is long."""
    seconds: float
    """Duration of the simulations."""
