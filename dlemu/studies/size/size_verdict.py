"""Computes the contents of size.json from the trials, and says it in a sentence. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.limit import Limit
from dlemu.metrics.t_interval import plus_minus
from dlemu.metrics.verdict import HOST_LIMITS, Outcome
from dlemu.report.units import number
from dlemu.results.wording import Wording, count, scaled, sentences
from dlemu.studies.answers import (
    Bracket,
    CountResult,
    FullSize,
    HostOnly,
    NextAccelerator,
    Question,
    SizeAnswer,
    SizeLimit,
    Trial,
)
from dlemu.studies.size.search import Count, edge, pool

HOST = ("host", "loader", *HOST_LIMITS)
"""Limits that are the host's, not the storage's (docs/metrics.md, section 6)."""
_WEIGHTS = {"high": 3, "medium": 2, "low": 1}


class Seen(StrEnum):
    """Codes of evidence that does not come from a trial: why no more were tried, or that the limit is not known."""

    MOST_ASKED = "most_asked"
    FEW_SAMPLES = "few_samples"
    FEW_OWN_FILES = "few_own_files"
    REFUSED = "refused"
    CEILING = "ceiling"
    NOT_KNOWN = "not_known"


_NUMBERS = re.compile(r"[0-9][0-9.,]*")


def _ceiling(accelerators: int, au_percent: float) -> str:
    return (
        f"with {count(accelerators, 'accelerator')} this host reaches an AU of {au_percent:.1f} % without any storage: "
        "use a host with more cores, or several"
    )


_SEEN: Wording = {
    Seen.MOST_ASKED: "--most {most} was the limit",
    Seen.FEW_SAMPLES: "the dataset has too few files for more than {most}: to try {one_more} takes {files} "
    "(dataset.num_files_train={files})",
    Seen.FEW_OWN_FILES: "the folder has too few files for more than {most}: to try {one_more} takes {files}",
    Seen.REFUSED: "{message}",
    Seen.CEILING: _ceiling,
    Seen.NOT_KNOWN: "the trials' summaries do not record it",
}


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
    full_size: FullSize | None = None
    """As in the answer, but for how many it feeds."""
    most: int
    """The largest count that may be tried; `most_why` says why no larger one."""
    most_why: Finding
    naive_seconds_per_trial: float
    """Nominal time of one run as configured, with all steps of all epochs."""
    others: str = ""
    """What `dlemu doctor` says of other programs that used the cores right before; empty where they did not."""


def build_answer(question: Question, known: Known, trials: Sequence[Trial], *, refusal: str = "") -> SizeAnswer:
    """Return the answer from the trials so far, marked incomplete.

    `refusal` is the error of a count that this host could not run; smaller ones could.
    """
    counts = pool(trials, question.threshold_percent, question.confidence_percent / 100)
    low, high = edge(counts)
    by_number = {count.accelerators: count for count in counts}
    shown = max((c.accelerators for c in counts if c.accelerators <= low and c.result.passed), default=0)
    failing = None if high is None else by_number[high]
    last = math.inf if high is None else high
    above = [trial for trial in trials if shown < trial.accelerators <= last]
    failed = [trial for trial in above if trial.au_sustained_percent < question.threshold_percent]
    passed = [trial for trial in trials if trial.accelerators == shown]
    limited_by = _limited_by(failing, failed or above, passed, known, refusal)
    decided = limited_by.what in HOST_LIMITS
    by_host = [limit for limit in _limits(trials) if decided and limit.what in HOST_LIMITS]
    codes = {found.code for limit in by_host for found in limit.findings}
    by_others = bool(by_host and known.others) or Code.OTHER_PROGRAM_ON_CORES in codes
    slowed = [_slowed(by_host, len(trials), by_others=by_others)] if by_host else []
    storage_mb_per_second = max([known.probe_mb_per_second, *(trial.app_mb_per_second for trial in trials)])
    host_only = _host_only(limited_by, shown, storage_mb_per_second, question, known)
    if by_others:
        host_only = HostOnly(storage_could_feed=None)  # the rates, too, are what other programs left
    return SizeAnswer(
        complete=False,
        max_accelerators=shown,
        question=question,
        hosts=known.hosts,
        too_close_to_tell=tuple(
            c.accelerators for c in counts if c.result.passed is None and c.accelerators in (low, high)
        ),
        limited_by=limited_by,
        edge=Bracket(
            passing=by_number[shown].result if shown else None, failing=None if failing is None else failing.result
        ),
        for_one_more=_for_one_more(shown, trials, question, known),
        full_size=known.full_size and known.full_size.fed_by(100 * storage_mb_per_second / question.threshold_percent),
        host_only=host_only,
        probe_mb_per_second=known.probe_mb_per_second,
        storage_mb_per_second=storage_mb_per_second,
        counts=tuple(count.result for count in counts),
        issues=(*filter(None, [known.others]), *slowed, *_issues(trials)),
        trials=tuple(trials),
        seconds=sum(trial.seconds for trial in trials),
        naive_seconds=_naive_seconds(high or shown, counts, known),
    )


def _issues(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the trials' warnings, without those that differ from another one only in their numbers."""
    warnings = sorted({trial.page_cache_warning for trial in trials if trial.page_cache_warning})
    return tuple({_NUMBERS.sub("", warning): warning for warning in warnings}.values())


def _slowed(by_host: Sequence[Limit], trials: int, *, by_others: bool) -> str:
    """Return how many trials the host slowed down, as a sentence."""
    by = f"this host ({', '.join(sorted({limit.what for limit in by_host}))}): relieve it and run again"
    if by_others:
        by = "other programs: run again on an idle host"
    return f"{len(by_host)} of {count(trials, 'trial')} {'was' if len(by_host) == 1 else 'were'} slowed by {by}"


def _limited_by(
    failing: Count | None, deciding: Sequence[Trial], passed: Sequence[Trial], known: Known, refusal: str
) -> SizeLimit:
    """Return what keeps more than `passed` from passing, by the trials that failed or were left open above."""
    limit = cause_of(deciding, passed)
    if failing is None and limit.what not in HOST_LIMITS:
        why = Finding(Seen.REFUSED, numbers={"message": refusal}) if refusal else known.most_why
        return SizeLimit(what="host" if refusal else "count", seen=(why,))
    if failing is not None and failing.held_back:
        reached = {"accelerators": failing.accelerators, "au_percent": failing.ceiling_au_percent}
        return SizeLimit(what="emulator", confidence="high", seen=(Finding(Seen.CEILING, numbers=dict(reached)),))
    return limit


def cause_of(trials: Sequence[Trial], passed: Sequence[Trial] = ()) -> SizeLimit:
    """Return the cause that the trials name, weighed by their confidence; the host's causes count as one.

    Others are named with low confidence only where no trial, of those that `passed` neither, names the host.
    """
    named = _limits(trials)
    if not named:
        return SizeLimit(what="not known", seen=(Finding(Seen.NOT_KNOWN),))
    groups = [HOST_LIMITS, *((limit.what,) for limit in named)]  # of equal ones the first counts
    largest = max(([limit for limit in named if limit.what in group] for group in groups), key=_weight)
    share = _weight(largest) / (_WEIGHTS["high"] * len(named))
    if share < 0.5:
        largest = [limit for limit in (*named, *_limits(passed)) if limit.what in HOST_LIMITS] or largest
    surest = max(largest, key=lambda limit: _WEIGHTS[limit.confidence])
    return SizeLimit(
        what=surest.what,
        confidence="low" if share < 0.5 else "medium" if share < 0.75 else "high",  # as in dlemu.metrics.limit
        evidence=(*surest.evidence, *surest.advice),
        seen=surest.findings,
    )


def _limits(trials: Sequence[Trial]) -> list[Limit]:
    return [trial.limited_by for trial in trials if trial.limited_by]


def _weight(limits: Sequence[Limit]) -> int:
    return sum(_WEIGHTS[limit.confidence] for limit in limits)


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
    measured = {count.accelerators: au for count in counts if (au := count.result.au_sustained_percent) > 0}
    return sum(
        known.naive_seconds_per_trial * 100 / min(100.0, measured.get(number, 100.0)) for number in range(1, last + 1)
    )


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


def with_evidence(answer: SizeAnswer) -> SizeAnswer:
    """Return an answer with its evidence as sentences, unless it has those of a trial's limit."""
    limit = answer.limited_by
    return replace(answer, limited_by=replace(limit, evidence=limit.evidence or sentences(limit.seen, _SEEN)))


def sentence(answer: SizeAnswer) -> str:
    """Return the answer as a sentence: how many pass, the verdict of the next count, and what limits it."""
    name = answer.question.accelerator
    kind, at_scale = f"x {name}" if name else "accelerator", answer.scaled
    passing, failing = answer.edge.passing, answer.edge.failing
    if passing is None:
        parts = [f"not even 1 {kind}{at_scale} passes{' on this host' if answer.host_only else ''}"]
    else:
        several = "s" * (not name and passing.accelerators > 1)
        least = "at least " if answer.host_only else ""
        parts = [f"{least}{passing.accelerators} {kind}{several}{at_scale} {_verb(passing)} (AU {_au(passing)})"]
    if failing:
        parts.append(f"{failing.accelerators} {_verb(failing)} ({_au(failing)})")
    parts += [
        f"{count.accelerators} {_verb(count)} ({_au(count)})"
        for count in answer.counts
        if count.accelerators in answer.too_close_to_tell and count != failing
    ]
    return f"{', '.join(parts)}: {_limit(answer)}{_rates(answer)}"


def at_full_size(answer: SizeAnswer) -> str:
    """Return how many accelerators the storage would feed with samples of full size, as a sentence; empty at that."""
    full, name = answer.full_size, answer.question.accelerator
    if full is None:
        return ""
    article = "an" if not name or re.match("[aefhilmnorsx8]", name) else "a"  # the letters of names are said singly
    each, divisor = f"{article} {name.upper() or 'accelerator'}", full.sample_divisor
    needs = f"At full size {each} needs {number(full.mb_per_accelerator)} MB/s"
    if scaled(divisor):
        times = f"{max(divisor, 1 / divisor):.3g} times {'larger' if divisor > 1 else 'smaller'}"
        needs = f"Full-size samples are {times} ({number(full.mb_per_accelerator)} MB/s {each})"
    fed = f"at least {full.accelerators}" if answer.host_only else full.accelerators or "none (0)"
    return f"{needs}: this drive would feed {fed}."


def contradiction(answer: SizeAnswer) -> str:
    """Return a sentence on the first count that passed but was predicted to fail, or vice versa; empty without one."""
    predicted, threshold = answer.predicted, answer.question.threshold_percent
    if predicted is None:
        return ""
    for tried in answer.counts:
        expected = predicted.au(tried.accelerators)
        if expected is None or tried.passed is None:
            continue
        low, high = expected.au_interval_percent
        if (high < threshold) if tried.passed else (low >= threshold):
            why = "part of the trials' reads came from memory, or the storage is faster with more readers"
            if not tried.passed:
                who = "this host" if answer.host_only else "this host, the loader or the storage's latency"
                why = f"{who} limits them, which no short read shows"
            return (
                f"prediction and measurement contradict each other: by the read probe of "
                f"{number(answer.probe_mb_per_second)} MB/s {'at least ' * bool(predicted.no_more)}"
                f"{predicted.max_accelerators} pass, but "
                f"{tried.accelerators} {_verb(tried)} (AU {_au(tried)}, predicted {low:.1f} to {high:.1f} %): the "
                f"trials decide; {why}"
            )
    return ""


def _verb(count: CountResult) -> str:
    if count.passed is None:
        return "is too close to call"
    if count.accelerators == 1:
        return "passes" if count.passed else "fails"
    return "pass" if count.passed else "fail"


def _au(count: CountResult) -> str:
    return f"{count.au_sustained_percent:.1f} % {plus_minus(count.au_sustained_percent, count.half_width_percent, 1)}"


def _limit(answer: SizeAnswer) -> str:
    what = answer.limited_by.what
    if what == "count":
        return f"no more were tried: {answer.limited_by.evidence[0]}"
    if what == "host":
        limit = f"this host can't hold more: {answer.limited_by.evidence[0]}"
    elif what == "nothing":
        limit = "limited by computation times that differ between accelerators, not by data"
    else:
        limit = "what limits it is unknown" if what == "not known" else f"limited by {answer.limited_by.name}"
    if answer.host_only and (could := answer.host_only.storage_could_feed) is not None:
        return f"{limit}; at the rate it delivered, the storage could have fed about {could}"
    return limit


def _rates(answer: SizeAnswer) -> str:
    passing = answer.edge.passing
    if not passing or answer.host_only:
        return ""
    rates = [trial.app_mb_per_second for trial in answer.trials_of(passing.accelerators)]
    return f"; {_gb(sum(rates) / len(rates))} of the {_gb(answer.storage_mb_per_second)} that the storage delivers"


def _gb(mb_per_second: float) -> str:
    if mb_per_second < 10:  # a small rate must not show as 0.0 MB/s
        return f"{number(mb_per_second)} MB/s"
    return f"{mb_per_second / 1e3:.2f} GB/s" if mb_per_second >= 1000 else f"{mb_per_second:.1f} MB/s"
