"""Pass, fail or no verdict, and why, in one line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dlemu.metrics.cache import PARTLY_READ_PERCENT
from dlemu.metrics.percent_interval import plus_minus

VerdictBy = Literal["sustained", "au", "rules"]
Outcome = Literal["pass", "fail", "undecided", "no verdict"]
"""What came of a question about the storage; `undecided`: measured, and too near to the threshold to tell."""
EXIT_STATUSES: dict[Outcome, int] = {"pass": 0, "fail": 1, "undecided": 4, "no verdict": 4}
"""docs/results.md, section 1. The last two share a status: who gates on it has no answer about the storage."""
COMPLETED = tuple(sorted(set(EXIT_STATUSES.values())))
"""Exit statuses of a command that was measured to its end, whatever came of it."""
_NAMES: dict[VerdictBy, str] = {"sustained": "sustained AU", "au": "AU", "rules": "AU of whole epochs"}


OF_HOST = {"host CPU": "host's CPU", "memory": "host's memory", "emulator": "emulator on this host"}
"""Limits of the host, in words: while one of them holds, a run says of the storage only that it gave no less."""


@dataclass(frozen=True)
class Verdict:
    """What came of a run, and why in one line."""

    outcome: Outcome
    text: str

    @property
    def passed(self) -> bool | None:
        """None when the run can't tell."""
        return {"pass": True, "fail": False}.get(self.outcome)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a verdict rests on. AU values are in percent, None where there is none."""

    complete: bool
    threshold_percent: float
    by: VerdictBy
    """Which AU is held against the threshold."""
    au: float | None
    """The headline: kept steps."""
    au_sustained: float | None
    au_whole: float | None
    """All steps."""
    uncertainty_percent: float | None
    """U (k = 2); None where too little was measured to tell."""
    epochs: int
    """That were measured."""
    ceiling_au: float | None
    from_storage_percent: float | None
    """Share of the bytes that the storage served; None where that is not known."""
    cached: bool
    """The user asks for a verdict though memory serves."""
    kept_steps: int
    """Steps of the shortest epoch that count in the AU."""
    supply_known: bool = True
    """The sustained AU is what the storage sustains; else the least that it does."""
    limited_by: str = ""
    """What limited the run (`Limit.what`); empty where that is not known."""
    prefetched_steps: int
    """Batches that may be read ahead while a step waits, and so during the first one, which does not count."""

    @property
    def judged(self) -> float | None:
        """The AU that is held against the threshold."""
        return {"sustained": self.au_sustained, "au": self.au, "rules": self.au_whole}[self.by]


def judge(evidence: Evidence) -> Verdict:
    """Judge an AU against the threshold.

    An AU below the threshold says something about the storage only when the emulator alone, on null storage, reaches
    the threshold on this host. One above it says something only when the storage served the bytes; and by the headline
    AU, only when the counted steps are more than were read ahead during the first, uncounted one, unless the AU with
    that one counted is above the threshold as well. One that is nearer to the threshold than it is uncertain says
    nothing yet.
    """
    wanted, au = evidence.threshold_percent, evidence.judged
    if not evidence.complete:
        return Verdict("no verdict", "NO VERDICT: the run did not complete")
    # Without a counted step there is no AU, and what an endless epoch would have is known of none either.
    if au is None or math.isnan(au) or (evidence.by == "sustained" and evidence.au is None):
        return Verdict(
            "no verdict", "NO VERDICT: nothing computed (train.computation_time is 0, or every step was excluded)"
        )
    margin = evidence.uncertainty_percent
    width = f" {plus_minus(au, margin, 2)}" if margin is not None and margin >= 0.005 else ""
    value = f"{_NAMES[evidence.by]} {au:.2f}{width} %"
    if au < wanted and evidence.ceiling_au is not None and evidence.ceiling_au < wanted:
        return Verdict(
            "no verdict",
            f"NO VERDICT on the storage: {value} is below {wanted:g} %, but on this host the emulator reaches only "
            f"{evidence.ceiling_au:.2f} % without any storage; use fewer ranks or a host with more cores",
        )
    served = evidence.from_storage_percent
    if au >= wanted and not evidence.cached and served is not None and served < PARTLY_READ_PERCENT:
        return Verdict(
            "no verdict",
            f"NO VERDICT: the storage served {served:.0f} % of the bytes ({value}); read past the page cache or empty "
            "it, or say metric.cached=true to judge all the same",
        )
    if evidence.by == "au" and au >= wanted and _all_read_ahead(evidence):
        return Verdict(
            "no verdict",
            f"NO VERDICT: only {evidence.kept_steps} steps of an epoch count, and up to "
            f"{evidence.prefetched_steps} batches are read while its first step waits, which does not count: use "
            "more files, or fewer ranks",
        )
    if evidence.by == "sustained" and not evidence.supply_known and au < wanted <= (evidence.au or 0.0):
        return Verdict(
            "no verdict",
            f"NO VERDICT: all batches of an epoch are read at once as it begins, of which the storage gives {value} at "
            "least, and what it sustains is not known: use more files, or fewer ranks",
        )
    if au < wanted and evidence.limited_by in OF_HOST:
        return Verdict(
            "no verdict",
            f"NO VERDICT on the storage: {value} is below {wanted:g} %, but the {OF_HOST[evidence.limited_by]} is the "
            "limit, so the storage may give more than was asked of it; relieve the host and run again",
        )
    if margin is not None and margin > abs(au - wanted):
        epochs = _epochs_to_decide(evidence, abs(au - wanted), margin)
        return Verdict(
            "undecided", f"UNDECIDED: {value} is too near to {wanted:g} %; run longer: train.epochs={epochs}"
        )
    if au >= wanted:
        return Verdict("pass", f"PASS: {value} is at least {wanted:g} %{_other_opinion(evidence)}")
    return Verdict("fail", f"FAIL: {value} is below {wanted:g} %{_other_opinion(evidence)}")


def _epochs_to_decide(evidence: Evidence, distance: float, margin: float) -> int:
    """Return how many epochs bring U below the distance to the threshold: it falls with the root of the time."""
    factor = (margin / max(distance, margin / 10)) ** 2
    return max(evidence.epochs + 1, math.ceil(evidence.epochs * factor * 1.1))


def _all_read_ahead(evidence: Evidence) -> bool:
    return (evidence.au_whole or 0) < evidence.threshold_percent and evidence.kept_steps <= evidence.prefetched_steps


def _other_opinion(evidence: Evidence) -> str:
    """Return in a sentence that the sustained AU and the headline fall on two sides of the threshold, if they do."""
    au, sustained, wanted = evidence.au, evidence.au_sustained, evidence.threshold_percent
    if au is None or sustained is None or not sustained < wanted <= au:
        return ""
    credit = au - sustained
    if evidence.by == "au":
        return f", by {credit:.1f} points of prefetch: the storage sustains {sustained:.1f} %"
    return f"; the counted steps' AU, {au:.2f} %, would pass by {credit:.1f} points of prefetch"


def warm_up_bias(evidence: Evidence) -> float | None:
    """Return the factor by which the AU may be too high because of batches read during the uncounted first step.

    Were the storage the limit, the counted steps would need as many batches less as were read ahead before them. None
    when the AU that counts everything is above the threshold too, or when nothing can be told.
    """
    if (evidence.au_whole or 0) >= evidence.threshold_percent or evidence.kept_steps <= evidence.prefetched_steps:
        return None
    return evidence.kept_steps / (evidence.kept_steps - evidence.prefetched_steps)
