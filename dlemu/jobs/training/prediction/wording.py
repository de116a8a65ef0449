"""A prediction in sentences."""

from __future__ import annotations

from dataclasses import replace

from dlemu.jobs.training.prediction.prediction import PREDICTED, Issue, PredictedVerdict, Prediction, Seen
from dlemu.metrics.findings import Finding
from dlemu.results.wording import Wording, sentence, sentences


def in_words(answer: Prediction) -> Prediction:
    """Return a prediction with its verdict, its evidence and its findings as sentences."""
    assert answer.verdict_code is not None  # it was made just now
    limit = answer.limited_by
    said = sentence(Finding(answer.verdict_code, numbers=answer.verdict_numbers), _VERDICTS)
    limited = "" if limit.what == "nothing" else f"; limited by {limit.what}"
    return replace(
        answer,
        verdict=f"{PREDICTED}: {said}{limited}",
        limited_by=replace(limit, evidence=sentences(limit.seen, _SEEN)),
        issues=sentences(answer.findings, _ISSUES),
    )


def _passing(accelerators: int, au_percent: float, low: int) -> str:
    if not low:
        return f"none is sure to pass ({accelerators}: au {au_percent:.1f} %)"
    return f"{low} pass{'es' * (low == 1)} (au {au_percent:.1f} %)"


def _most(accelerators: int, au_percent: float, low: int, high: int) -> str:
    return _passing(accelerators, au_percent, low)


def _most_or_more(accelerators: int, au_percent: float, low: int, high: int) -> str:
    return f"{_passing(accelerators, au_percent, low)}, and more may: the storage was never asked for all it has"


def _most_or_few_more(accelerators: int, au_percent: float, low: int, high: int) -> str:
    close = f"{low + 1} to {high} are" if low + 1 < high else f"{high} is"
    return f"{_passing(accelerators, au_percent, low)}, {close} too close to tell"


def _gains(faster: float, faster_points: float, more_readers: int, readers_points: float, cores_points: float) -> str:
    return (
        f"of AU over whole epochs a storage {faster:g} times as fast brings {_gain(faster_points)}, "
        f"{more_readers} times the readers {_gain(readers_points)}, a core for each worker {_gain(cores_points)}"
    )


def _gain(points: float) -> str:
    """Return what a change brings, in points of AU; of what makes it worse, no number that reads like advice."""
    return f"{points:+.1f} points" if points >= 0.05 else "nothing"


_VERDICTS: Wording = {
    PredictedVerdict.PASSES: "{accelerators} pass (au {au_percent:.1f} %)",
    PredictedVerdict.FAILS: "{accelerators} fail (au {au_percent:.1f} %)",
    PredictedVerdict.TOO_CLOSE: "{accelerators} too close to tell (au {au_percent:.1f} %)",
    PredictedVerdict.NONE_PASSES: "not even 1 passes (au {au_percent:.1f} %)",
    PredictedVerdict.MOST: _most,
    PredictedVerdict.MOST_OR_MORE: _most_or_more,
    PredictedVerdict.MOST_OR_FEW_MORE: _most_or_few_more,
}
_SEEN: Wording = {
    Seen.SUSTAINED: "{accelerators} accelerators sustain an AU of {au_percent:.1f} %",
    Seen.GAINS: _gains,
}
_ISSUES: Wording = {
    Issue.READERS_NEVER_TRIED: "{readers} readers were never tried: the storage is taken to give them what it gave "
    "{tried}",
    Issue.NOT_SATURATED: "the storage was never asked for all it has, so it may feed more than predicted: calibrate on "
    "a run that waits, or leave --from out to probe it",
    Issue.OTHER_SAMPLES: "calibrated on samples of {calibrated_bytes:,.0f} bytes, asked for samples of "
    "{sample_bytes:,.0f}: what a storage gives depends on the size of what is read",
    Issue.BUSY_CORES: "beside the readers {busy_cores:.1f} of {cores:g} cores were busy while the storage was probed "
    "(other programs, or the storage's own): a run is predicted that has as much left",
    Issue.CHECKPOINTS_LEFT_OUT: "checkpoints are left out: they are no part of any AU, and lengthen the run",
    Issue.STEPS_LEFT_OUT: "{simulated_steps:,} of {planned_steps:,} steps were simulated",
    Issue.NOTE: "{text}",
}
