"""Decides whether a run passes, fails or gives no verdict: compares an AU with the threshold.

Kept steps are those that remain when each block loses its first and last steps (docs/metrics.md, section 1). The
headline AU is that of the kept steps, the sustained AU that of an endless epoch, and the whole AU that of all steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dlemu.metrics.cache import PARTLY_READ_PERCENT
from dlemu.metrics.findings import Number

VerdictBy = Literal["sustained", "au", "rules"]
Outcome = Literal["pass", "fail", "undecided", "no verdict"]
"""The answer to a question about the storage; `undecided`: too close to the threshold for the uncertainty."""
EXIT_STATUSES: dict[Outcome, int] = {"pass": 0, "fail": 1, "undecided": 4, "no verdict": 4}
"""See docs/results.md, section 1. The last two share a status: neither answers the question about the storage."""
PASSED: dict[Outcome | None, bool] = {"pass": True, "fail": False}  # only outcomes that are a verdict
COMPLETED = tuple(sorted(set(EXIT_STATUSES.values())))  # exit statuses of a command that completed its measurement
HOST_LIMITS = ("host CPU", "emulator")  # limits (`Limit.what`) of the host: the storage may be faster


class VerdictCode(StrEnum):
    """Pass, fail, or the reason why there is no verdict."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"
    INCOMPLETE = "incomplete"
    NOTHING_COMPUTED = "nothing_computed"
    NOTHING_READ = "nothing_read"
    UNEVEN_COMPUTATION = "uneven_computation"
    EMULATOR_TOO_SLOW = "emulator_too_slow"
    CACHE_SERVED = "cache_served"
    TOO_FEW_STEPS = "too_few_steps"
    SUPPLY_NOT_KNOWN = "supply_not_known"
    HOST_LIMITED = "host_limited"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One number of accelerators, measured or predicted."""

    accelerators: int
    passed: bool | None
    """None while the verdict is open: the threshold is inside the interval."""


_OUTCOMES: dict[str, Outcome] = {"pass": "pass", "fail": "fail", "undecided": "undecided"}


@dataclass(frozen=True)
class Verdict:
    """A verdict's code and the numbers that justify it."""

    code: VerdictCode
    numbers: dict[str, Number]

    @property
    def outcome(self) -> Outcome:
        return _OUTCOMES.get(self.code, "no verdict")

    @property
    def passed(self) -> bool | None:
        """None without a pass or fail."""
        return PASSED.get(self.outcome)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a verdict depends on. AU values are in percent, None if not measured."""

    complete: bool
    threshold_percent: float
    by: VerdictBy
    """Which AU is compared with the threshold: `sustained`, `au` (the headline AU) or `rules` (the whole AU)."""
    au: float | None
    """The headline AU, of the kept steps."""
    au_sustained: float | None
    """The AU of an endless epoch."""
    au_whole: float | None
    """AU of all steps."""
    au_without_waits: float | None = None
    """AU of the kept steps if no accelerator had waited for data: below 100 if computation times, drawn at random,
    differ between ranks; None if nothing computed."""
    uncertainty_percent: float | None
    """U (k = 2) of the sustained AU; None if too little was measured to estimate it."""
    length: tuple[str, int]
    """The setting with which a run takes longer, and its present amount."""
    ceiling_au: float | None
    """AU of the emulator alone, on null storage."""
    from_storage_percent: float | None
    """Percentage of the bytes that came from storage, not from the page cache; None if unknown."""
    cached: bool
    """`metric.cached`: give a verdict even if memory served the bytes."""
    reads: bool = True
    """Whether the run read anything."""
    kept_steps: int
    """Kept steps of a block, the mean."""
    supply_known: bool = True
    """Whether the sustained AU is a measured value; else it is only a lower bound."""
    prefetched_steps: int
    """Most batches that the loader may read ahead during the first step of a block, which is not counted."""

    @property
    def judged(self) -> float | None:
        """The AU that is compared with the threshold."""
        return {"sustained": self.au_sustained, "au": self.au, "rules": self.au_whole}[self.by]


def judge(evidence: Evidence, limited_by: str = "") -> Verdict:
    """Return the verdict; `limited_by` is what limited the run (`Limit.what`), empty if unknown.

    A fail needs an emulator, a host and computation times that would reach the threshold without storage. A pass needs
    bytes from storage. A pass by the headline AU also needs more kept steps than were read ahead, or a whole AU that
    passes. An AU is undecided if it is closer to the threshold than its uncertainty.
    """
    threshold, au = evidence.threshold_percent, evidence.judged
    if not evidence.complete:
        return Verdict(VerdictCode.INCOMPLETE, {})
    # Without a kept step, there is no headline AU, and the sustained AU is not judged, either. Without computation, the
    # whole AU is 0.
    if au is None or math.isnan(au) or evidence.au_whole == 0 or (evidence.by == "sustained" and evidence.au is None):
        return Verdict(VerdictCode.NOTHING_COMPUTED, {})
    if not evidence.reads and not evidence.cached:
        return Verdict(VerdictCode.NOTHING_READ, {})
    passes = au >= threshold
    margin, served_percent = evidence.uncertainty_percent, evidence.from_storage_percent
    numbers: dict[str, Number] = {"by": evidence.by, "au_percent": au, "threshold_percent": threshold}
    if margin is not None:
        numbers["uncertainty_percent"] = margin
    if passes:
        if not evidence.cached and served_percent is not None and served_percent < PARTLY_READ_PERCENT:
            return Verdict(VerdictCode.CACHE_SERVED, numbers | {"from_storage_percent": served_percent})
        # Perhaps the kept steps pass only because all their batches were read during the first step.
        were_read_ahead = (evidence.au_whole or 0) < threshold and evidence.kept_steps <= evidence.prefetched_steps
        if evidence.by == "au" and were_read_ahead:
            steps = {"kept_steps": evidence.kept_steps, "prefetched_steps": evidence.prefetched_steps}
            return Verdict(VerdictCode.TOO_FEW_STEPS, numbers | steps)
    else:
        without_waits = evidence.au_without_waits
        if without_waits is not None and without_waits < threshold:
            return Verdict(VerdictCode.UNEVEN_COMPUTATION, numbers | {"au_without_waits_percent": without_waits})
        if evidence.ceiling_au is not None and evidence.ceiling_au < threshold:
            return Verdict(VerdictCode.EMULATOR_TOO_SLOW, numbers | {"ceiling_au_percent": evidence.ceiling_au})
        if evidence.by == "sustained" and not evidence.supply_known and (evidence.au or 0.0) >= threshold:
            return Verdict(VerdictCode.SUPPLY_NOT_KNOWN, numbers)
        if limited_by in HOST_LIMITS:
            return Verdict(VerdictCode.HOST_LIMITED, numbers | {"limited_by": limited_by})
    distance = abs(au - threshold)
    if margin is not None and margin > distance:
        # U falls with the root of the time: advise at most 100 times the length, and 10 % more, as U is an estimate.
        factor = (margin / max(distance, margin / 10)) ** 2
        setting, amount = evidence.length
        longer = max(amount + 1, math.ceil(amount * factor * 1.1))
        return Verdict(VerdictCode.UNDECIDED, numbers | {"longer": f"{setting}={longer}"})
    headline, sustained = evidence.au, evidence.au_sustained
    if headline is not None and sustained is not None and sustained < threshold <= headline:
        numbers |= {"headline_au_percent": headline, "sustained_au_percent": sustained}
    return Verdict(VerdictCode.PASS if passes else VerdictCode.FAIL, numbers)


def is_biased(evidence: Evidence) -> bool:
    """Return whether the headline AU is over 5 % too high; by K / (K - P), if P of K kept steps were read ahead."""
    kept, ahead = evidence.kept_steps, evidence.prefetched_steps
    if evidence.au_whole is None or evidence.au_whole >= evidence.threshold_percent:
        return False  # a run that passes by all steps does not depend on the headline AU
    return kept <= ahead or kept / (kept - ahead) > 1.05
