"""Pass, fail or no verdict, and why, in one line."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """`passed` is None when the run can't tell."""

    passed: bool | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a verdict rests on. AU values are in percent, None where there is none."""

    complete: bool
    threshold_percent: float
    au: float | None
    au_rules: float | None
    ceiling_au: float | None
    kept_steps: int
    """Steps of the shortest epoch that count in the AU."""
    prefetched_steps: int
    """Batches that may be read ahead while a step waits, and so during the first one, which does not count."""


def judge(evidence: Evidence) -> Verdict:
    """Judge the headline AU against the threshold.

    An AU below the threshold says something about the storage only when the emulator alone, on null storage, reaches
    the threshold on this host. An AU above it says something only when the counted steps are more than were read
    ahead during the first, uncounted one; unless the AU with that one counted is above the threshold as well.
    """
    wanted = evidence.threshold_percent
    if not evidence.complete:
        return Verdict(None, "NO VERDICT: the run did not complete")
    if evidence.au is None or math.isnan(evidence.au):
        return Verdict(None, "NO VERDICT: nothing computed (train.computation_time is 0, or every step was excluded)")
    if evidence.au >= wanted:
        if (evidence.au_rules or 0) < wanted and evidence.kept_steps <= evidence.prefetched_steps:
            return Verdict(
                None,
                f"NO VERDICT: only {evidence.kept_steps} steps of an epoch count, and up to "
                f"{evidence.prefetched_steps} batches are read while its first step waits, which does not count: use "
                "more files, or fewer ranks",
            )
        return Verdict(True, f"PASS: AU {evidence.au:.2f} % is at least {wanted:g} %")
    if evidence.ceiling_au is not None and evidence.ceiling_au < wanted:
        return Verdict(
            None,
            f"NO VERDICT on the storage: AU {evidence.au:.2f} % is below {wanted:g} %, but on this host the emulator "
            f"reaches only {evidence.ceiling_au:.2f} % without any storage; use fewer ranks or a host with more cores",
        )
    return Verdict(False, f"FAIL: AU {evidence.au:.2f} % is below {wanted:g} %")


def warm_up_bias(evidence: Evidence) -> float | None:
    """Return the factor by which the AU may be too high because of batches read during the uncounted first step.

    Were the storage the limit, the counted steps would need as many batches less as were read ahead before them. None
    when the AU that counts everything is above the threshold too, or when nothing can be told.
    """
    if (evidence.au_rules or 0) >= evidence.threshold_percent or evidence.kept_steps <= evidence.prefetched_steps:
        return None
    return evidence.kept_steps / (evidence.kept_steps - evidence.prefetched_steps)
