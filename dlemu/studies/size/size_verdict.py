"""Computes the contents of size.json from the trials: how many pass, why no more, what one more needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dlemu.metrics.findings import Finding
from dlemu.metrics.verdict import Outcome
from dlemu.studies.answers import Bracket, HostOnly, NextAccelerator, Question, SizeAnswer, SizeLimit, Trial
from dlemu.studies.size.search import Count, edge, pool

HOST = ("emulator", "host", "host CPU", "loader", "memory")
"""Limits that are the host's, not the storage's (docs/metrics.md, section 6)."""


class Seen(StrEnum):
    """Codes of evidence that does not come from a trial: why no more were tried, or that the limit is not known."""

    MOST_ASKED = "most_asked"
    FEW_SAMPLES = "few_samples"
    FEW_OWN_FILES = "few_own_files"
    REFUSED = "refused"
    CEILING = "ceiling"
    NOT_KNOWN = "not_known"


_NUMBERS = re.compile(r"[0-9][0-9.,]*")


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known before the first trial."""

    hosts: tuple[str, ...]
    probe_mb_per_second: float
    """Rate of a short read of the dataset's files, with nothing else going on."""
    one_reader_mb_per_second: float = 0.0
    """Rate of a single reader; 0 where it is not known."""
    mb_per_accelerator: float
    """Rate that one accelerator needs, from the workload's nominal sizes."""
    most: int
    """The largest count that may be tried; `most_why` says why no larger one."""
    most_why: Finding
    naive_seconds_per_trial: float
    """Nominal time of one run as configured, with all steps of all epochs."""


def build_answer(question: Question, known: Known, trials: Sequence[Trial], *, refusal: str = "") -> SizeAnswer:
    """Return the answer from the trials so far, marked incomplete.

    `refusal` is the error of a count that this host could not run; smaller ones could.
    """
    counts = pool(trials, question.threshold_percent, question.confidence_percent / 100)
    low, high = edge(counts)
    by_number = {count.accelerators: count for count in counts}
    shown = max((c.accelerators for c in counts if c.accelerators <= low and c.passes and c.decided), default=0)
    failing = None if high is None else by_number[high]
    limited_by = _limited_by(failing, trials, known, refusal)
    storage_mb_per_second = max([known.probe_mb_per_second, *(trial.app_mb_per_second for trial in trials)])
    return SizeAnswer(
        complete=False,
        max_accelerators=shown,
        question=question,
        hosts=known.hosts,
        threshold_percent=question.threshold_percent,
        too_close_to_tell=tuple(c.accelerators for c in counts if not c.decided and c.accelerators in (low, high)),
        limited_by=limited_by,
        edge=Bracket(
            passing=by_number[shown].result if shown else None,
            failing=None if failing is None else failing.result,
        ),
        for_one_more=_for_one_more(shown, trials, question, known),
        host_only=_host_only(limited_by, shown, storage_mb_per_second, question, known),
        probe_mb_per_second=known.probe_mb_per_second,
        storage_mb_per_second=storage_mb_per_second,
        counts=tuple(count.result for count in counts),
        issues=_issues(trials),
        trials=tuple(trials),
        seconds=sum(trial.seconds for trial in trials),
        naive_seconds=_naive_seconds(high or shown, counts, known),
    )


def _issues(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the trials' warnings, without those that differ from another one only in their numbers."""
    warnings = sorted({trial.page_cache_warning for trial in trials if trial.page_cache_warning})
    return tuple({_NUMBERS.sub("", warning): warning for warning in warnings}.values())


def _limited_by(failing: Count | None, trials: Sequence[Trial], known: Known, refusal: str) -> SizeLimit:
    """Return what keeps the next count from passing: the limit found by most of the trials that failed with it."""
    if failing is None:
        why = Finding(Seen.REFUSED, numbers={"message": refusal}) if refusal else known.most_why
        return SizeLimit(what="host" if refusal else "count", seen=(why,))
    if failing.held_back:
        reached = {"accelerators": failing.accelerators, "au_percent": failing.ceiling_au_percent}
        return SizeLimit(what="emulator", seen=(Finding(Seen.CEILING, numbers=dict(reached)),))
    limits = [trial.limited_by for trial in trials if trial.accelerators == failing.accelerators and trial.limited_by]
    if not limits:
        return SizeLimit(what="not known", seen=(Finding(Seen.NOT_KNOWN),))
    names = [limit.what for limit in limits]
    limit = limits[names.index(max(set(names), key=names.count))]
    return SizeLimit(what=limit.what, evidence=(*limit.evidence, *limit.advice), seen=(*limit.seen, *limit.to_do))


def _for_one_more(shown: int, trials: Sequence[Trial], question: Question, known: Known) -> NextAccelerator:
    """Return the rate that the storage would have to deliver for one more accelerator, and the highest that it did."""
    per_accelerator = trials[-1].mb_per_accelerator if trials else known.mb_per_accelerator
    return NextAccelerator(
        accelerators=shown + 1,
        wanted_mb_per_second=(shown + 1) * (question.threshold_percent / 100) * per_accelerator,
        most_delivered_mb_per_second=max((trial.app_mb_per_second for trial in trials), default=None),
    )


def _host_only(
    limited_by: SizeLimit, shown: int, storage_mb_per_second: float, question: Question, known: Known
) -> HostOnly | None:
    """Return how many accelerators the storage could feed at its highest rate; None unless the host was the limit."""
    if limited_by.what not in HOST:
        return None
    each = question.threshold_percent / 100 * known.mb_per_accelerator
    return HostOnly(storage_could_feed=max(shown, int(storage_mb_per_second / each)) if each else None)


def _naive_seconds(last: int, counts: Sequence[Count], known: Known) -> float:
    """Return the time to run every count up to `last` at full length, at the measured AU or else 100 %."""
    measured = {count.accelerators: count.au_percent for count in counts if count.au_percent > 0}
    return sum(
        known.naive_seconds_per_trial * 100 / min(100.0, measured.get(number, 100.0)) for number in range(1, last + 1)
    )


def outcome_of(answer: SizeAnswer, wanted: int) -> Outcome:
    """Return the outcome of the question whether `wanted` accelerators pass.

    "fail" needs a count of at most `wanted` that was shown to fail. If the search ended because of the emulator, the
    host's capacity or the largest count allowed, there is no verdict on the storage.
    """
    if answer.max_accelerators >= wanted:
        return "pass"
    if answer.limited_by.what in ("emulator", "host", "count"):
        return "no verdict"
    failed = any(count.passed is False and count.accelerators <= wanted for count in answer.counts)
    return "fail" if failed else "undecided"
