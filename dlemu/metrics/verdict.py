"""Pass, fail or no verdict, and why, as a code with its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dlemu.metrics.cache import PARTLY_READ_PERCENT
from dlemu.metrics.findings import Number

JUDGEMENT_VERSION = 3
"""Raised whenever a rule of verdicts or causes changes, so that an audit distinguishes old judgements from edits."""
VerdictBy = Literal["sustained", "au", "rules"]
Outcome = Literal["pass", "fail", "undecided", "no verdict"]
"""What became of a question about the storage; `undecided`: measured, and too near to the threshold to tell."""
EXIT_STATUSES: dict[Outcome, int] = {"pass": 0, "fail": 1, "undecided": 4, "no verdict": 4}
"""docs/results.md, section 1. The last two share a status: who gates on it has no answer about the storage."""
COMPLETED = tuple(sorted(set(EXIT_STATUSES.values())))
"""Exit statuses of a command that was measured to its end, whatever the result."""
OF_HOST = ("host CPU", "memory", "emulator")
"""Limits of the host: while one of them holds, a run says of the storage only that it gave no less."""


class VerdictCode(StrEnum):
    """What became of a run: pass, fail, or why it can't tell."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"
    INCOMPLETE = "incomplete"
    NOTHING_COMPUTED = "nothing_computed"
    EMULATOR_TOO_SLOW = "emulator_too_slow"
    CACHE_SERVED = "cache_served"
    TOO_FEW_STEPS = "too_few_steps"
    SUPPLY_NOT_KNOWN = "supply_not_known"
    HOST_LIMITED = "host_limited"


_OUTCOMES: dict[VerdictCode, Outcome] = {
    VerdictCode.PASS: "pass",
    VerdictCode.FAIL: "fail",
    VerdictCode.UNDECIDED: "undecided",
}


@dataclass(frozen=True)
class Verdict:
    """What became of a run, and the numbers that say why."""

    code: VerdictCode
    numbers: dict[str, Number]

    @property
    def outcome(self) -> Outcome:
        return _OUTCOMES.get(self.code, "no verdict")

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
    """The user wants a verdict though memory serves."""
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
        return Verdict(VerdictCode.INCOMPLETE, {})
    # Without a counted step there is no AU, and what an endless epoch would have is known of none either.
    if au is None or math.isnan(au) or (evidence.by == "sustained" and evidence.au is None):
        return Verdict(VerdictCode.NOTHING_COMPUTED, {})
    margin, served = evidence.uncertainty_percent, evidence.from_storage_percent
    numbers: dict[str, Number] = {"by": evidence.by, "au_percent": au, "threshold_percent": wanted}
    if margin is not None:
        numbers["uncertainty_percent"] = margin
    if au < wanted and evidence.ceiling_au is not None and evidence.ceiling_au < wanted:
        return Verdict(VerdictCode.EMULATOR_TOO_SLOW, numbers | {"ceiling_au_percent": evidence.ceiling_au})
    if au >= wanted and not evidence.cached and served is not None and served < PARTLY_READ_PERCENT:
        return Verdict(VerdictCode.CACHE_SERVED, numbers | {"from_storage_percent": served})
    if evidence.by == "au" and au >= wanted and _all_read_ahead(evidence):
        steps = {"kept_steps": evidence.kept_steps, "prefetched_steps": evidence.prefetched_steps}
        return Verdict(VerdictCode.TOO_FEW_STEPS, numbers | steps)
    if evidence.by == "sustained" and not evidence.supply_known and au < wanted <= (evidence.au or 0.0):
        return Verdict(VerdictCode.SUPPLY_NOT_KNOWN, numbers)
    if au < wanted and evidence.limited_by in OF_HOST:
        return Verdict(VerdictCode.HOST_LIMITED, numbers | {"limited_by": evidence.limited_by})
    if margin is not None and margin > abs(au - wanted):
        epochs = _epochs_to_decide(evidence, abs(au - wanted), margin)
        return Verdict(VerdictCode.UNDECIDED, numbers | {"epochs": epochs})
    return Verdict(VerdictCode.PASS if au >= wanted else VerdictCode.FAIL, numbers | _other_opinion(evidence))


def _epochs_to_decide(evidence: Evidence, distance: float, margin: float) -> int:
    """Return how many epochs bring U below the distance to the threshold: it falls with the root of the time."""
    factor = (margin / max(distance, margin / 10)) ** 2  # 100 times the epochs at most
    return max(evidence.epochs + 1, math.ceil(evidence.epochs * factor * 1.1))  # a tenth more, for U is estimated


def _all_read_ahead(evidence: Evidence) -> bool:
    return (evidence.au_whole or 0) < evidence.threshold_percent and evidence.kept_steps <= evidence.prefetched_steps


def _other_opinion(evidence: Evidence) -> dict[str, Number]:
    """Return the sustained AU and the headline where they fall on two sides of the threshold."""
    au, sustained = evidence.au, evidence.au_sustained
    if au is None or sustained is None or not sustained < evidence.threshold_percent <= au:
        return {}
    return {"headline_au_percent": au, "sustained_au_percent": sustained}


def warm_up_bias(evidence: Evidence) -> float | None:
    """Return the factor by which the AU may be too high because of batches read during the uncounted first step.

    Were the storage the limit, the counted steps would need as many batches less as were read ahead before them. None
    when the AU that counts everything is above the threshold too, or when nothing is known.
    """
    if (evidence.au_whole or 0) >= evidence.threshold_percent or evidence.kept_steps <= evidence.prefetched_steps:
        return None
    return evidence.kept_steps / (evidence.kept_steps - evidence.prefetched_steps)
