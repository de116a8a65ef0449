"""The answer of `dlemu predict` for training: the content of predict.json, also printed by `--json`, and its sentences.

docs/prediction.md explains it. Within a schema version fields may be added; none changes its meaning or disappears.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from dlemu.jobs.training.prediction.calibration import Calibration
from dlemu.metrics.findings import Finding, Number
from dlemu.metrics.verdict import Outcome
from dlemu.results.answer_files import ANSWER_VERSION
from dlemu.results.wording import Wording, scaled, sentence, sentences

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


VERDICT_AUS = {"sustained": "au_sustained_percent", "au": "au_percent", "rules": "au_whole_percent"}
"""`metric.verdict` -> the AU that is compared with the threshold."""
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
    sample_divisor: float | None = None
    """How many times larger samples are without the workload's scale; None where that is not known."""
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


def in_words(answer: Prediction) -> Prediction:
    """Return a prediction with its verdict, its evidence and its findings as sentences."""
    limit = answer.limited_by
    text = sentence(Finding(answer.verdict_code, numbers=answer.verdict_numbers), _VERDICTS)
    if not answer.calibration.saturated:
        text = text.replace("(AU ", "(AU at least ")
    small = scaled(answer.question.sample_divisor)
    limited = "" if limit.what in ("nothing", "unknown") else f"; limited by {limit.what}"
    return replace(
        answer,
        verdict=f"{PREDICTED}: {text}{limited}{f'; accelerators{small}' if small else ''}",
        limited_by=replace(limit, evidence=sentences(limit.seen, _SEEN)),
        issues=sentences(answer.findings, _ISSUES),
    )


NO_MORE = {
    "storage": "the storage never reached its limit",
    "others": "other programs took cores from its readers",
    "most": "--most {high} was the limit",
    "files": "the dataset has files for no more",
    "cores": "this host has cores for no more trainers (see --hosts, --host-cores)",
}
"""What ended a search before accelerators failed -> a phrase."""


def _passing(accelerators: int, au_percent: float, low: int, high: int = 0) -> str:
    """Say how many pass: `low`, or none for certain; the AU is that of `accelerators`."""
    if not low:
        return f"none is certain to pass (AU {au_percent:.1f} % with {accelerators})"
    return f"{low} pass{'es' * (low == 1)} (AU {au_percent:.1f} %)"


def _most_or_more(accelerators: int, au_percent: float, low: int, high: int, ended_by: str = "storage") -> str:
    return f"{'at least ' * bool(low)}{_passing(accelerators, au_percent, low)}: {NO_MORE[ended_by].format(high=high)}"


def _most_or_few_more(accelerators: int, au_percent: float, low: int, high: int, ended_by: str = "") -> str:
    close = f"{low + 1} to {high} are" if low + 1 < high else f"{high} is"
    no_more = f"; {NO_MORE[ended_by].format(high=high)}" if ended_by else ""
    return f"{_passing(accelerators, au_percent, low)}, {close} too close to call{no_more}"


def _gains(faster: float, faster_points: float, more_readers: int, readers_points: float, cores_points: float) -> str:
    return (
        f"AU over whole epochs would change by {_gain(faster_points)} with storage {faster:g} times as fast, by "
        f"{_gain(readers_points)} with {more_readers} times the readers, by {_gain(cores_points)} with a core per "
        "worker"
    )


def _gain(points: float) -> str:
    """Return the gain of a change in points of AU; a loss is shown as 0, as it is no advice."""
    return f"{points:+.1f} points" if points >= 0.05 else "0 points"


_VERDICTS: Wording = {
    PredictedVerdict.PASSES: "{accelerators} pass (AU {au_percent:.1f} %)",
    PredictedVerdict.FAILS: "{accelerators} fail (AU {au_percent:.1f} %)",
    PredictedVerdict.TOO_CLOSE: "{accelerators} too close to call (AU {au_percent:.1f} %)",
    PredictedVerdict.NONE_PASSES: "not even 1 passes (AU {au_percent:.1f} %)",
    PredictedVerdict.MOST: _passing,
    PredictedVerdict.MOST_TRIED: _most_or_more,
    PredictedVerdict.MOST_OR_MORE: _most_or_more,
    PredictedVerdict.MOST_OR_FEW_MORE: _most_or_few_more,
}
_SEEN: Wording = {
    Seen.SUSTAINED: "the AU with {accelerators:count accelerator} is {au_percent:.1f} %",
    Seen.GAINS: _gains,
}
_ISSUES: Wording = {
    Issue.READERS_NEVER_TRIED: "no measurement had {readers:count reader}: the speed with {tried} is assumed",
    Issue.NOT_SATURATED: "the storage never reached its limit, so it gives at least this: calibrate with a run that "
    "waits for data (--from RUN)",
    Issue.OTHER_SAMPLES: "calibrated with samples of {calibrated_bytes:,.0f} bytes, predicted for {sample_bytes:,.0f}",
    Issue.LINE_IGNORED: "{size_bytes:,} bytes at depth {depth} are given as {mb_per_second:,.0f} MB/s, but the "
    "drive's other figures mean {model_mb_per_second:,.0f} MB/s (assumed): check those at depth 1",
    Issue.BUSY_CORES: "{busy_cores:.1f} of {cores:g} cores were busy with other work in the probe, and the "
    "intervals allow for that: stop it and predict again",
    Issue.FILES_ASSUMED: "the workload has {configured:count file}: {files:,} were assumed for "
    "{accelerators:count accelerator}",
    Issue.CHECKPOINTS_LEFT_OUT: "checkpoints are not included: no AU counts them, but they lengthen the run",
    Issue.STEPS_LEFT_OUT: "{simulated_steps:,} of {planned_steps:,} steps were simulated",
    Issue.HOST_SLOWER_THAN_STEP: "AU by DLIO's formula is not predicted: the host's delay of {delay_ms:.2g} ms is "
    "longer than a step's {step_ms:.2g} ms",
    Issue.NOTE: "{text}",
}
