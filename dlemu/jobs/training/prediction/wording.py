"""The sentences of a prediction: its verdict, evidence and issues by their codes."""

from __future__ import annotations

from dataclasses import replace

from dlemu.jobs.training.prediction.prediction import PREDICTED, Issue, PredictedVerdict, Prediction, Seen
from dlemu.metrics.findings import Finding
from dlemu.results.wording import Wording, sentence, sentences


def in_words(answer: Prediction) -> Prediction:
    """Return a prediction with its verdict, its evidence and its findings as sentences."""
    limit = answer.limited_by
    text = sentence(Finding(answer.verdict_code, numbers=answer.verdict_numbers), _VERDICTS)
    limited = "" if limit.what in ("nothing", "unknown") else f"; limited by {limit.what}"
    return replace(
        answer,
        verdict=f"{PREDICTED}: {text}{limited}",
        limited_by=replace(limit, evidence=sentences(limit.seen, _SEEN)),
        issues=sentences(answer.findings, _ISSUES),
    )


def _passing(accelerators: int, au_percent: float, low: int) -> str:
    """Say how many pass: `low`, or none for certain; the AU is that of `accelerators`."""
    if not low:
        return f"none is certain to pass (AU of {accelerators}: {au_percent:.1f} %)"
    return f"{low} pass{'es' * (low == 1)} (AU {au_percent:.1f} %)"


def _most(accelerators: int, au_percent: float, low: int, high: int) -> str:
    return _passing(accelerators, au_percent, low)


def _most_or_more(accelerators: int, au_percent: float, low: int, high: int, ended_by: str = "storage") -> str:
    reasons = {
        "storage": "the storage never reached its limit",
        "most": f"--most {high} was the limit",
        "files": "the dataset has too few files for more",
        "cores": "this host has no cores for more trainers (see --hosts, --host-cores)",
    }
    return f"{_passing(accelerators, au_percent, low)}, possibly more: {reasons[ended_by]}"


def _most_or_few_more(accelerators: int, au_percent: float, low: int, high: int) -> str:
    close = f"{low + 1} to {high} are" if low + 1 < high else f"{high} is"
    return f"{_passing(accelerators, au_percent, low)}, {close} too close to call"


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
    PredictedVerdict.MOST: _most,
    PredictedVerdict.MOST_TRIED: _most_or_more,
    PredictedVerdict.MOST_OR_MORE: _most_or_more,
    PredictedVerdict.MOST_OR_FEW_MORE: _most_or_few_more,
}
_SEEN: Wording = {
    Seen.SUSTAINED: "the sustained AU with {accelerators:count accelerator} is {au_percent:.1f} %",
    Seen.GAINS: _gains,
}
_ISSUES: Wording = {
    Issue.READERS_NEVER_TRIED: "no measurement had {readers:count reader}: the storage is assumed to deliver what it "
    "did with {tried}",
    Issue.NOT_SATURATED: "the storage never reached its limit, so it may feed more than predicted: calibrate with a "
    "run that waits for data (--from RUN)",
    Issue.OTHER_SAMPLES: "calibrated with samples of {calibrated_bytes:,.0f} bytes, predicted for samples of "
    "{sample_bytes:,.0f}: a storage's speed depends on the size of what is read",
    Issue.LINE_IGNORED: "the drive's figures contradict each other: {size_bytes:,} bytes at depth {depth} are given as "
    "{mb_per_second:,.0f} MB/s, but the others mean {model_mb_per_second:,.0f} MB/s (assumed): check those at depth 1",
    Issue.BUSY_CORES: "besides the readers, {busy_cores:.1f} of {cores:g} cores were busy while the storage was "
    "probed (other programs, or the storage's own software): the intervals allow for a run that gets only the "
    "idle cores; stop what keeps the others busy and predict again",
    Issue.FILES_ASSUMED: "the workload has {configured:count file}: for {accelerators:count accelerator} a dataset of "
    "{files:,} was assumed (to predict for your own: dataset.num_files_train=N)",
    Issue.CHECKPOINTS_LEFT_OUT: "checkpoints are not included: no AU counts them, but they lengthen the run",
    Issue.STEPS_LEFT_OUT: "{simulated_steps:,} of {planned_steps:,} steps were simulated",
    Issue.HOST_SLOWER_THAN_STEP: "AU by DLIO's formula is not predicted: the host's delay after each step "
    "({delay_ms:.2g} ms) takes longer than the step's computation ({step_ms:.2g} ms), so it would hardly sleep",
    Issue.NOTE: "{text}",
}
