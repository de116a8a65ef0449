"""The answer of `dlemu predict` for training: predict.json, which `--json` prints too, and how the screen shows it.

docs/prediction.md explains it. Within a schema version fields may be added; none changes its meaning or disappears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from dlemu.jobs.training.prediction.calibration import Curve
from dlemu.jobs.training.wording import VERDICT_TONES
from dlemu.metrics.findings import Code, LimitedBy
from dlemu.metrics.limit import What
from dlemu.metrics.verdict import Attempt, Outcome
from dlemu.report.any_run import item_table
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.units import with_uncertainty
from dlemu.results.drive import OUTSIDE
from dlemu.results.kinds import Parts
from dlemu.results.parts import TargetFields
from dlemu.results.wording import Wording, at_scale
from dlemu.runner.prediction_request import Predicted

PREDICT = "predict.json"
PREDICTED = "predicted"  # first word of the answer's line
# Why a search ended before it found a number of accelerators that fails (`NO_MORE`)
EndedBy = Literal["storage", "others", "most", "files", "cores"]
Interval = tuple[float, float]  # lowest and highest value; at least 9 of 10 measured values are expected between them
_SHOWN_COUNTS = 3  # numbers of accelerators that have a line each on the screen, around the largest that passes
_VERDICTS = {True: "pass", False: "fail", None: "too close to call"}


@dataclass(frozen=True, kw_only=True)
class SimulatedFigures:
    """Metrics of a simulated run, as defined in docs/metrics.md."""

    au_percent: float
    """AU without the steps excluded by `metric.exclude_start_steps` and `exclude_end_steps`."""
    au_sustained_percent: float
    au_whole_percent: float
    au_dlio_v1_percent: float | None
    samples_per_second: float
    app_mb_per_second: float

    def verdict_au(self, by: str) -> float:
        """Return the AU that is compared with the threshold when `metric.verdict` is `by`."""
        return {"sustained": self.au_sustained_percent, "au": self.au_percent, "rules": self.au_whole_percent}[by]


def mean_figures(runs: Sequence[SimulatedFigures]) -> SimulatedFigures:
    """Return the mean of each figure over runs; None if a run lacks the figure."""
    means: dict[str, Any] = {}
    for figure in fields(SimulatedFigures):
        values = [getattr(run, figure.name) for run in runs]
        means[figure.name] = None if None in values else float(np.mean(values))
    return SimulatedFigures(**means)


@dataclass(frozen=True, kw_only=True)
class PredictedCount(SimulatedFigures, Attempt):
    """The prediction for one number of accelerators, which passes or fails by `metric.verdict`."""

    au_interval_percent: Interval
    au_sustained_interval_percent: Interval
    samples_per_second_interval: Interval
    null_au_percent: float
    """By the null model: N accelerators share the storage's highest throughput X, and nothing else matters.

    min(100 %, X / (N x rate)), in samples/s; `rate` is that of an accelerator that never waits.
    """
    needed_mb_per_second: float
    """MB/s (1e6 bytes) that these accelerators read at the AU of the threshold."""


@dataclass(frozen=True, kw_only=True)
class PredictionQuestion(TargetFields):
    """What was to be predicted."""

    hosts: int = 1
    verdict: Literal["sustained", "au", "rules"] = "sustained"
    """`metric.verdict`: which AU is compared with the threshold."""
    threshold_percent: float = 90.0


@dataclass(frozen=True, kw_only=True)
class Prediction(Predicted):
    """The answer."""

    question: PredictionQuestion
    accelerators: int
    """The requested number, else the highest that passes (1 if none): `counts` has its figures."""
    outcome: Outcome = field()
    """As in the exit status: for the requested number, else whether any passes."""
    limited_by: LimitedBy[What]
    """What limits the requested number, or the first that does not pass."""
    max_accelerators: int | None = None
    """The highest number that passes; None where a number was requested."""
    max_accelerators_interval: tuple[int, int] | None = None
    """How many pass for certain, and how many may."""
    null_max_accelerators: int
    """How many pass by the null model: floor(X / (threshold x rate))."""
    ended_by: EndedBy | None = None
    """Why no more were tried; None where the search found some that fail."""
    counts: tuple[PredictedCount, ...]
    """Every number of accelerators that was simulated completely, smallest first."""
    curve: Curve
    """What the whole storage delivers to so many readers."""
    half_width_percent: float
    """Half width of the curve's 95 % interval, as far as the measurement itself shows."""

    @property
    def shown(self) -> PredictedCount:
        """The figures of `accelerators`."""
        return next(count for count in self.counts if count.accelerators == self.accelerators)

    @property
    def verdict(self) -> str:
        """The answer as a sentence."""
        limit, scale = self.limited_by, at_scale(self.question.sample_divisor)
        limited_by = "" if limit.what == "nothing" else f"; limited by {limit.what}"
        scaled_down = f"; accelerators{scale}" if scale else ""
        return f"{PREDICTED}: {_passing(self)}{limited_by}{scaled_down}"


NO_MORE: dict[EndedBy, str] = {
    "storage": "the storage never reached its limit",
    "others": "other programs took cores from its readers",
    "most": "--most {high} was the limit",
    "files": "the dataset has files for no more",
    "cores": "this host has cores for no more trainers (see --hosts, --host-cores)",
}
NO_COMPUTATION = "train.computation_time is 0, so any number of accelerators passes: choose an accelerator"
# Why a prediction is less certain than its interval
FINDINGS: Wording[str] = {
    f"{OUTSIDE}.readers": "no measurement had {readers:count reader}: the speed with {tried} is assumed",
    f"{OUTSIDE}.saturation": "the storage never reached its limit, or gave more at first, so it gives at least this: "
    "calibrate with a run that waits for data (--from RUN)",
    f"{OUTSIDE}.samples": "calibrated with samples of {calibrated_bytes:,.0f} bytes, predicted for {sample_bytes:,.0f}",
    Code.OTHER_PROGRAM_ON_CORES: "{busy_cores:.1f} of {cores:g} cores were busy with other work in the probe, and the "
    "intervals allow for that: stop it and predict again",
}


def _passing(answer: Prediction) -> str:
    """Return how many pass, and how many more may: `18 pass (AU 91 +- 1 %), 19 to 21 are too close to call`."""
    is_lower_bound = any(finding.numbers.get("pattern") == "saturation" for finding in answer.findings)
    at_least = "at least " if is_lower_bound else ""
    low, high = answer.shown.au_sustained_interval_percent
    value = with_uncertainty(answer.shown.verdict_au(answer.question.verdict), (high - low) / 2)
    au = f"AU {at_least}{value.replace('±', '+-')}"
    if answer.max_accelerators_interval is None:  # a number of accelerators was requested
        return f"{answer.accelerators} {_VERDICTS[answer.shown.passed]} ({au})"
    certain, possible = answer.max_accelerators_interval
    if not possible:
        return f"not even 1 passes ({au})"
    if certain:
        passing = f"{certain} {'passes' if certain == 1 else 'pass'} ({au})"
    else:
        passing = f"none is certain to pass ({au} with {answer.accelerators})"
    end_reason = "" if answer.ended_by is None else NO_MORE[answer.ended_by].format(high=possible)
    if end_reason and (certain == possible or answer.ended_by in ("storage", "others")):
        return f"{'at least ' if certain else ''}{passing}: {end_reason}"
    if certain == possible:
        return passing
    too_close = f"{certain + 1} to {possible} are" if certain + 1 < possible else f"{possible} is"
    passing = f"{passing}, {too_close} too close to call"
    return f"{passing}; {end_reason}" if end_reason else passing


def _screen(answer: Prediction, folder: str) -> Screen:
    limit, shown, question = answer.limited_by, answer.shown, answer.question
    hardware = f" on {question.accelerator}" if question.accelerator else ""
    if answer.max_accelerators_interval is None:  # a number of accelerators was requested
        hardware = f", {answer.accelerators} x {question.accelerator or 'accelerator'}"
    hosts = f", {question.hosts} hosts" if question.hosts > 1 else ""
    verdict = answer.verdict.removeprefix(f"{PREDICTED}: ").replace("+-", "±")
    lines = [Said(PREDICTED, verdict, tone=VERDICT_TONES[shown.passed])]
    for count in answer.counts[:_SHOWN_COUNTS]:
        if count is not shown:
            low, high = count.au_sustained_interval_percent
            au = with_uncertainty(count.verdict_au(question.verdict), (high - low) / 2, question.threshold_percent)
            read = rate(count.app_mb_per_second)
            lines.append(Said(f"{count.accelerators:>3}", f"AU {au}, {read}: {_VERDICTS[count.passed]}"))
    limited_by = "not known" if limit.what == "nothing" and limit.confidence == "low" else limit.what
    needed, read = rate(shown.needed_mb_per_second), rate(shown.app_mb_per_second)
    lines += [
        Said("limit", f"{limited_by}: {limit.evidence[-1]}"),
        Said("needs", f"{needed} for {answer.accelerators} to pass; they read {read} over whole epochs"),
        Said("check", f"arithmetic alone (speed / demand of one) says {answer.null_max_accelerators} pass"),
        Said("from", answer.source),
    ]
    title = f"{question.workload}{hardware}{at_scale(question.sample_divisor)}: predicted{hosts}"
    return Screen(title=title, lines=lines, notes=answer.issues, folder=folder)


PARTS = Parts(
    answer_type=Prediction,
    screen=_screen,
    sections=lambda answer, _: (
        *item_table("Each number of accelerators", answer.counts),
        *item_table("What the storage delivers", answer.curve),
    ),
)
