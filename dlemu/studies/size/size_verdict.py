"""Computes the answer of a search (the content of size.json) from its trials, and puts it into words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlemu.metrics.findings import Code, Confidence, LimitedBy
from dlemu.metrics.limit import Limit
from dlemu.metrics.verdict import HOST_LIMITS, Outcome
from dlemu.report.screen import rate
from dlemu.results.wording import at_scale, count
from dlemu.studies.answers import CountResult, FullSize, Question, SizeAnswer, Trial, edge
from dlemu.studies.size.search import ceiling_below, pool

_WEIGHTS: dict[Confidence | None, int] = {"high": 3, "medium": 2, "low": 1, None: 1}


@dataclass(frozen=True, kw_only=True)
class SearchInputs:
    """The inputs of a search that are known before its first trial. Rates are in 1e6 bytes/s, 0 if unknown."""

    probe_mb_per_second: float  # the highest rate of the short read probe before the trials
    mb_per_accelerator: float  # rate that one accelerator needs, from the workload's nominal sizes
    full_mb_per_accelerator: float = 0.0  # the same for samples of full size; 0 if no scale makes them smaller
    max_accelerators: int  # the largest count that may be tried
    max_reason: str  # why no larger count may be tried, as a phrase
    naive_seconds_per_trial: float  # nominal time of one run as configured, with all steps of all epochs
    other_programs: str = ""  # warning that other programs use the cores, as of `dlemu doctor`; empty for none


def build_answer(question: Question, inputs: SearchInputs, trials: Sequence[Trial], *, refusal: str = "") -> SizeAnswer:
    """Return the incomplete answer of the trials so far; `refusal` is the error of a count that this host can't run."""
    threshold = question.threshold_percent
    results = pool(trials, threshold)
    _, failing = edge((result, result.au_sustained_percent >= threshold) for result in results)
    below = [result for result in results if failing is None or result.accelerators < failing.accelerators]
    max_passing = max((result.accelerators for result in below if result.passed), default=0)
    limited_by = _limited_by(trials, failing, max_passing, threshold, inputs.max_reason, refusal)
    if inputs.other_programs and limited_by.confidence == "high":
        limited_by = replace(limited_by, confidence="medium")  # the programs may have slowed down the trials, too
    # The page-cache warnings of trials differ only in their numbers: one is enough.
    cache_warnings = sorted(trial.page_cache_warning for trial in trials if trial.page_cache_warning)[:1]
    mb_per_accelerator = trials[-1].mb_per_accelerator if trials else inputs.mb_per_accelerator
    # A naive search runs every count: at an AU of 50 % in twice its nominal time; if it was not tried, at full speed.
    au_percents = {result.accelerators: result.au_sustained_percent for result in results}
    naive_counts = range(1, (failing.accelerators if failing else max_passing) + 1)
    naive_runs = sum(100 / min(100.0, au_percents.get(accelerators) or 100.0) for accelerators in naive_counts)
    answer = SizeAnswer(
        complete=False,
        max_accelerators=max_passing,
        question=question,
        limited_by=limited_by,
        wanted_mb_per_second=(max_passing + 1) * threshold / 100 * mb_per_accelerator,
        probe_mb_per_second=inputs.probe_mb_per_second,
        counts=tuple(results),
        issues=(*filter(None, [inputs.other_programs]), *cache_warnings),
        trials=tuple(trials),
        naive_seconds=naive_runs * inputs.naive_seconds_per_trial,
    )
    # An accelerator with an AU of 90 % needs 90 % of the rate at which it never waits.
    feedable_mb_per_second = 100 * answer.storage_mb_per_second / threshold
    if full_mb := inputs.full_mb_per_accelerator:
        full = FullSize(mb_per_accelerator=full_mb, accelerators=int(feedable_mb_per_second / full_mb))
        answer = replace(answer, full_size=full)
    host_limits = [limit for limit in _limits(trials) if limit.what in HOST_LIMITS]
    codes = {finding.code for limit in host_limits for finding in limit.findings}
    # Other programs may have slowed down the reads, so that the storage's highest rate is not known.
    was_disturbed = bool(inputs.other_programs and host_limits) or Code.OTHER_PROGRAM_ON_CORES in codes
    if answer.is_limited_by_host and inputs.mb_per_accelerator and not was_disturbed:
        accelerators = int(feedable_mb_per_second / inputs.mb_per_accelerator)
        answer = replace(answer, storage_could_feed=max(max_passing, accelerators))
    return answer


def _limited_by(
    trials: Sequence[Trial], failing: CountResult | None, max_passing: int, threshold: float, reason: str, refusal: str
) -> LimitedBy[str]:
    """Return what keeps more than `max_passing` accelerators from passing; `reason` is `SearchInputs.max_reason`."""
    if failing is not None and (ceiling := ceiling_below(failing, trials, threshold)):
        reached = (
            f"with {count(failing.accelerators, 'accelerator')} this host reaches an AU of {ceiling:.1f} % without any "
            "storage: use a host with more cores, or several"
        )
        return LimitedBy(what="emulator", confidence="high", evidence=(reached,))
    smallest_failing = failing.accelerators if failing else math.inf
    above = [trial for trial in trials if max_passing < trial.accelerators <= smallest_failing]
    failed = [trial for trial in above if trial.sustained.au_percent < threshold]
    limit = cause_of(failed or above, [trial for trial in trials if trial.accelerators == max_passing])
    if failing is not None or limit.what in HOST_LIMITS:
        return limit
    if refusal:
        return LimitedBy(what="host", evidence=(refusal,))
    return LimitedBy(what="count", evidence=(reason,))


def cause_of(trials: Sequence[Trial], passing_trials: Sequence[Trial] = ()) -> LimitedBy[str]:
    """Return what limited most trials, weighted by the confidence of each limit; all limits of the host count as one.

    High, medium and low confidence weigh 3, 2 and 1. For example, three trials limited by storage (high), storage
    (medium) and host CPU (medium) give storage 5 of at most 9: medium confidence. With low confidence, the limit is the
    host if any trial, even one that passes, was limited by the host.
    """
    limits = _limits(trials)
    if not limits:
        return LimitedBy(what="not known", evidence=("the trials' summaries do not record it",))
    groups = [HOST_LIMITS, *((limit.what,) for limit in limits)]
    weights = [sum(_WEIGHTS[limit.confidence] for limit in limits if limit.what in group) for group in groups]
    heaviest = groups[weights.index(max(weights))]  # of equal groups the first, so the host's before others
    candidates = [limit for limit in limits if limit.what in heaviest]
    share = max(weights) / (_WEIGHTS["high"] * len(limits))
    confidence: Confidence = "medium" if share < 0.75 else "high"  # the shares of dlemu.metrics.limit
    if share < 0.5:
        confidence = "low"
        host_limits = [limit for limit in (*limits, *_limits(passing_trials)) if limit.what in HOST_LIMITS]
        candidates = host_limits or candidates
    surest = max(candidates, key=lambda limit: _WEIGHTS[limit.confidence])
    return LimitedBy(what=surest.what, confidence=confidence, evidence=surest.evidence, advice=surest.advice)


def _limits(trials: Sequence[Trial]) -> list[Limit]:
    return [trial.limited_by for trial in trials if trial.limited_by]


def outcome_of(answer: SizeAnswer, at_least: int) -> Outcome:
    """Return whether `at_least` accelerators pass.

    "fail": `at_least` or fewer were shown to fail. "no verdict": the host or the largest count to try, and not the
    storage, ended the search. "undecided": the trials are too close to the threshold.
    """
    if answer.max_accelerators >= at_least:
        return "pass"
    if answer.limited_by.what in ("host", "count", *HOST_LIMITS):
        return "no verdict"
    failed = any(result.passed is False and result.accelerators <= at_least for result in answer.counts)
    return "fail" if failed else "undecided"


def sentence(answer: SizeAnswer) -> str:
    return f"{counts_in_words(answer)}; limit: {limit_in_words(answer)}"


def counts_in_words(answer: SizeAnswer) -> str:
    """Return how many accelerators pass, and the verdict on the next count: `4 x h100 pass, 5 fail`."""
    passing = next((result for result in answer.counts if result.accelerators == answer.max_accelerators), None)
    samples = at_scale(answer.question.sample_divisor)
    if passing is None:
        where = " on this host" if answer.is_limited_by_host else ""
        phrases = [f"not even {_accelerators(answer, 1)}{samples} passes{where}"]
    else:
        bound = "at least " if answer.is_limited_by_host or answer.limited_by.what == "count" else ""
        phrases = [f"{bound}{_accelerators(answer, passing.accelerators)}{samples} {_verb(passing)}"]
    at_edge = dict.fromkeys(filter(None, [answer.failing, *answer.too_close_to_tell]))
    phrases += [f"{result.accelerators} {_verb(result)}" for result in at_edge if result != passing]
    return ", ".join(phrases)


def at_full_size(answer: SizeAnswer, full: FullSize) -> str:
    """Return how many accelerators the storage would feed with samples of full size, as a phrase."""
    threshold = answer.question.threshold_percent
    fed = f"{'at least ' if answer.is_limited_by_host else ''}{_accelerators(answer, full.accelerators)}"
    needed, supplied = rate(full.mb_per_accelerator * threshold / 100), rate(answer.storage_mb_per_second)
    return f"{fed} at real size: for AU {threshold:g} % 1 needs {needed}, and the storage gave {supplied}"


def _accelerators(answer: SizeAnswer, number: int) -> str:
    name = answer.question.accelerator
    return f"{number} x {name}" if name else count(number, "accelerator")


def _verb(result: CountResult) -> str:
    if result.passed is None:
        return "is too close to call"
    if result.accelerators == 1:
        return "passes" if result.passed else "fails"
    return "pass" if result.passed else "fail"


def limit_in_words(answer: SizeAnswer) -> str:
    """Return what keeps the next count from passing, as a phrase."""
    limit = answer.limited_by
    reason = "".join(limit.evidence[:1])
    phrases = {
        "count": f"no more were tried: {reason}",
        "host": f"this host can't hold more: {reason}",
        "nothing": "computation times that differ between accelerators, not data",
    }
    text = phrases.get(limit.what, limit.name)
    if answer.storage_could_feed is not None:
        text += f"; at the rate it delivered, the storage could have fed about {answer.storage_could_feed}"
    return text
