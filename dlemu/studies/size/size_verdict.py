"""Computes the contents of size.json from the trials, and says it in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlemu.metrics.findings import Code, Confidence, LimitedBy
from dlemu.metrics.limit import Limit
from dlemu.metrics.verdict import HOST_LIMITS, Outcome
from dlemu.report.screen import rate
from dlemu.results.wording import count
from dlemu.studies.answers import CountResult, FullSize, Question, SizeAnswer, Trial, edge
from dlemu.studies.size.search import is_held_back, pool

_WEIGHTS: dict[Confidence | None, int] = {"high": 3, "medium": 2, "low": 1}


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known before the first trial."""

    probe_mb_per_second: float
    """The highest rate of a short probe, with nothing else going on."""
    mb_per_accelerator: float
    """Rate that one accelerator needs, from the workload's nominal sizes; 0 where it is not known."""
    full_size: FullSize | None = None
    """As in the answer, but for how many it feeds."""
    most: int
    """The largest count that may be tried."""
    most_why: str
    """Why no larger one, as a phrase."""
    naive_seconds_per_trial: float
    """Nominal time of one run as configured, with all steps of all epochs."""
    others: str = ""
    """What `dlemu doctor` says of other programs that used the cores right before; empty where they did not."""


def build_answer(question: Question, known: Known, trials: Sequence[Trial], *, refusal: str = "") -> SizeAnswer:
    """Return the answer from the trials so far, marked incomplete.

    `refusal` is the error of a count that this host could not run; smaller ones could.
    """
    threshold = question.threshold_percent
    counts = pool(trials, threshold, question.confidence_percent / 100)
    low, failing = edge((one, one.au_sustained_percent >= threshold) for one in counts)
    tried = [one for one in counts if low is not None and one.accelerators <= low.accelerators]
    shown = max((one.accelerators for one in tried if one.passed), default=0)
    limited_by = _limited_by(failing, shown, trials, threshold, known, refusal)
    by_host = [limit for limit in _limits(trials) if limit.what in HOST_LIMITS]
    codes = {found.code for limit in by_host for found in limit.findings}
    by_others = bool(by_host and known.others) or Code.OTHER_PROGRAM_ON_CORES in codes
    warnings = sorted(trial.page_cache_warning for trial in trials if trial.page_cache_warning)
    per_accelerator = trials[-1].mb_per_accelerator if trials else known.mb_per_accelerator
    au = {one.accelerators: one.au_sustained_percent for one in counts if one.au_sustained_percent > 0}
    up_to_edge = range(1, (failing.accelerators if failing else shown) + 1)
    if known.others and limited_by.confidence == "high":
        limited_by = replace(limited_by, confidence="medium")  # they may have slowed the trials, too
    answer = SizeAnswer(
        complete=False,
        max_accelerators=shown,
        question=question,
        limited_by=limited_by,
        wanted_mb_per_second=(shown + 1) * threshold / 100 * per_accelerator,
        probe_mb_per_second=known.probe_mb_per_second,
        counts=tuple(counts),
        issues=(*filter(None, [known.others]), *warnings[:1]),  # of alike ones that differ in their numbers
        trials=tuple(trials),
        naive_seconds=known.naive_seconds_per_trial * sum(100 / min(100.0, au.get(n, 100.0)) for n in up_to_edge),
    )
    fully_busy_mb = 100 * answer.storage_mb_per_second / threshold
    if known.full_size is not None:
        fed = int(fully_busy_mb / known.full_size.mb_per_accelerator)
        answer = replace(answer, full_size=replace(known.full_size, accelerators=fed))
    if answer.is_limited_by_host and not by_others and known.mb_per_accelerator:
        answer = replace(answer, storage_could_feed=max(shown, int(fully_busy_mb / known.mb_per_accelerator)))
    return answer


def _limited_by(
    failing: CountResult | None, shown: int, trials: Sequence[Trial], threshold: float, known: Known, refusal: str
) -> LimitedBy[str]:
    """Return what keeps more than `shown` from passing, by the trials that failed or were left open above."""
    above = [trial for trial in trials if trial.accelerators > shown]
    if failing is not None:
        above = [trial for trial in above if trial.accelerators <= failing.accelerators]
    failed = [trial for trial in above if trial.au_sustained_percent < threshold]
    limit = cause_of(failed or above, [trial for trial in trials if trial.accelerators == shown])
    if failing is None and limit.what not in HOST_LIMITS:
        return LimitedBy(what="host" if refusal else "count", evidence=(refusal or known.most_why,))
    if failing is not None and is_held_back(failing, threshold):
        reached = (
            f"with {count(failing.accelerators, 'accelerator')} this host reaches an AU of "
            f"{failing.ceiling_au_percent:.1f} % without any storage: use a host with more cores, or several"
        )
        return LimitedBy(what="emulator", confidence="high", evidence=(reached,))
    return limit


def cause_of(trials: Sequence[Trial], passed: Sequence[Trial] = ()) -> LimitedBy[str]:
    """Return the cause that the trials name, weighed by their confidence; the host's causes count as one.

    Others are named with low confidence only where no trial, of those that `passed` neither, names the host.
    """
    named = _limits(trials)
    if not named:
        return LimitedBy(what="not known", evidence=("the trials' summaries do not record it",))
    groups = [HOST_LIMITS, *((limit.what,) for limit in named)]  # of equal ones the first counts
    weights = [sum(_WEIGHTS[limit.confidence] for limit in named if limit.what in group) for group in groups]
    largest = [limit for limit in named if limit.what in groups[weights.index(max(weights))]]
    share = max(weights) / (_WEIGHTS["high"] * len(named))
    if share < 0.5:
        largest = [limit for limit in (*named, *_limits(passed)) if limit.what in HOST_LIMITS] or largest
    surest = max(largest, key=lambda limit: _WEIGHTS[limit.confidence])
    return LimitedBy(
        what=surest.what,
        confidence="low" if share < 0.5 else "medium" if share < 0.75 else "high",  # as in dlemu.metrics.limit
        evidence=surest.evidence,
        advice=surest.advice,
    )


def _limits(trials: Sequence[Trial]) -> list[Limit]:
    return [trial.limited_by for trial in trials if trial.limited_by]


def outcome_of(answer: SizeAnswer, wanted: int) -> Outcome:
    """Return the outcome of the question whether `wanted` accelerators pass.

    "fail" needs a count of at most `wanted` that was shown to fail. If the search ended because of the host or the
    largest count allowed, there is no verdict on the storage.
    """
    if answer.max_accelerators >= wanted:
        return "pass"
    if answer.limited_by.what in ("host", "count", *HOST_LIMITS):
        return "no verdict"
    failed = any(count.passed is False and count.accelerators <= wanted for count in answer.counts)
    return "fail" if failed else "undecided"


def sentence(answer: SizeAnswer) -> str:
    """Return the answer as a sentence: how many pass, the verdict of the next count, and what limits it."""
    return f"{counts_in_words(answer)}; limit: {limit_in_words(answer)}"


def counts_in_words(answer: SizeAnswer) -> str:
    """Return how many pass, and the verdict of the next count, as a phrase."""
    is_host = answer.is_limited_by_host
    passing = next((one for one in answer.counts if one.accelerators == answer.max_accelerators), None)
    if passing is None:
        parts = [f"not even {_some(answer, 1)}{answer.scaled} passes{' on this host' * is_host}"]
    else:
        some = _some(answer, passing.accelerators)
        is_bound = is_host or answer.limited_by.what == "count"
        parts = [f"{'at least ' * is_bound}{some}{answer.scaled} {_verb(passing)}"]
    beyond = dict.fromkeys([*filter(None, [answer.failing]), *answer.too_close_to_tell])
    parts += [f"{one.accelerators} {_verb(one)}" for one in beyond if one != passing]
    return ", ".join(parts)


def at_full_size(answer: SizeAnswer) -> str:
    """Return how many accelerators the storage would feed with samples of full size, as a phrase; empty at that."""
    full, threshold = answer.full_size, answer.question.threshold_percent
    if full is None:
        return ""
    fed = f"{'at least ' * answer.is_limited_by_host}{_some(answer, full.accelerators)}"
    return f"{fed} at real size: 1 needs {rate(full.mb_per_accelerator * threshold / 100)} for AU {threshold:g} %"


def _some(answer: SizeAnswer, accelerators: int) -> str:
    name = answer.question.accelerator
    return f"{accelerators} x {name}" if name else count(accelerators, "accelerator")


def _verb(count: CountResult) -> str:
    if count.passed is None:
        return "is too close to call"
    if count.accelerators == 1:
        return "passes" if count.passed else "fails"
    return "pass" if count.passed else "fail"


def limit_in_words(answer: SizeAnswer) -> str:
    """Return what keeps the next count from passing, as a phrase."""
    limit = answer.limited_by
    why = "".join(limit.evidence[:1])
    said = {
        "count": f"no more were tried: {why}",
        "host": f"this host can't hold more: {why}",
        "nothing": "computation times that differ between accelerators, not data",
    }.get(limit.what, limit.name)
    if answer.storage_could_feed is not None:
        return f"{said}; at the rate it delivered, the storage could have fed about {answer.storage_could_feed}"
    return said
