"""From the trials to the answer: how many, why no more, and what one more would take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dlemu.sizing.search import edge
from dlemu.sizing.trial import Count, Trial, together

SCHEMA_VERSION = 1
HOST = ("emulator", "host", "host CPU", "loader", "memory")
"""Limits that are the host's, not the storage's (docs/metrics.md, section 6)."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What was asked; two searches with equal questions may share their trials."""

    workload: str
    accelerator: str
    scale: str
    overrides: tuple[str, ...]
    """The user's own words."""
    launcher: str
    threshold_percent: float
    confidence_percent: float
    trial_seconds: float
    cached: bool


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known before any trial."""

    hosts: tuple[str, ...]
    probe_mb_per_second: float
    """What a short read of the dataset's files got, with nothing else going on."""
    mb_per_accelerator: float
    """What one accelerator asks for, by the workload's nominal sizes."""
    most: int
    """The largest count that may be tried, and why no larger one."""
    most_why: str
    naive_seconds_per_trial: float
    """Nominal time of one run as configured, all steps of all epochs."""


def build_answer(question: Question, known: Known, trials: Sequence[Trial], *, stopped_by: str = "") -> dict[str, Any]:
    """Return size.json (docs/sizing.md); of a search under way, marked incomplete, what it found so far.

    `stopped_by` is the message of a trial that could not run at all above the counts that could.
    """
    counts = together(trials, question.threshold_percent, question.confidence_percent / 100)
    low, high = edge(counts)
    found = {count.accelerators: count for count in counts}
    shown = max((c.accelerators for c in counts if c.accelerators <= low and c.passes and c.settled), default=0)
    failing = found.get(high) if high is not None else None
    limited_by = _limited_by(failing, trials, known, stopped_by)
    answer: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "complete": False,
        "question": asdict(question),
        "hosts": list(known.hosts),
        "threshold_percent": question.threshold_percent,
        "max_accelerators": shown,
        "too_close_to_tell": [c.accelerators for c in counts if not c.settled and c.accelerators in (low, high)],
        "limited_by": limited_by,
        "edge": {
            "pass": _edge(found.get(shown)),
            "fail": _edge(failing),
        },
        "for_one_more": _for_one_more(shown, trials, question, known),
        "host_only": _host_only(limited_by, shown, trials, question, known),
        "probe_mb_per_second": known.probe_mb_per_second,
        "storage_mb_per_second": _storage_mb_per_second(trials, known),
        "counts": [_edge(count) for count in counts],
        "issues": sorted({trial.page_cache_warning for trial in trials if trial.page_cache_warning}),
        "trials": [asdict(trial) for trial in trials],
        "seconds": sum(trial.seconds for trial in trials),
        "naive_seconds": _naive_seconds(high or shown, counts, known),
    }
    return answer


def _edge(count: Count | None) -> dict[str, Any] | None:
    if count is None:
        return None
    return {
        "accelerators": count.accelerators,
        "au_percent": count.au_percent,
        "half_width_percent": count.half_width_percent,
        "settled": count.settled,
        "passed": count.passes if count.settled else None,
        "trials": count.trials,
    }


def _limited_by(failing: Count | None, trials: Sequence[Trial], known: Known, stopped_by: str) -> dict[str, Any]:
    """Return what keeps the next count from passing: as the failing trials' own verdicts say, if they agree."""
    if failing is None:
        what = "host" if stopped_by else "count"
        return {"what": what, "evidence": [stopped_by or known.most_why]}
    if failing.held_back:
        return {
            "what": "emulator",
            "evidence": [
                f"with {failing.accelerators} accelerators this host reaches an AU of {failing.ceiling_au_percent:.1f} "
                "% without any storage: use a host with more cores, or several"
            ],
        }
    told = [trial.limited_by for trial in trials if trial.accelerators == failing.accelerators and trial.limited_by]
    if told:
        names = [str(one.get("what")) for one in told]
        common = max(set(names), key=names.count)
        one = told[names.index(common)]
        return {"what": common, "evidence": [*one.get("evidence", []), *one.get("advice", [])]}
    return {"what": "not known", "evidence": ["the trials' summaries do not say"]}


def _for_one_more(shown: int, trials: Sequence[Trial], question: Question, known: Known) -> dict[str, Any]:
    """Return what the storage would have to deliver for one accelerator more, and the most that it did."""
    per_accelerator = next((t.mb_per_accelerator for t in reversed(trials)), known.mb_per_accelerator)
    share = question.threshold_percent / 100
    return {
        "accelerators": shown + 1,
        "wanted_mb_per_second": (shown + 1) * share * per_accelerator,
        "most_delivered_mb_per_second": max((trial.app_mb_per_second for trial in trials), default=None),
    }


def _storage_mb_per_second(trials: Sequence[Trial], known: Known) -> float:
    """Return the most that the storage was seen to give."""
    return max([known.probe_mb_per_second, *(trial.app_mb_per_second for trial in trials)])


def _host_only(
    limited_by: dict[str, Any], shown: int, trials: Sequence[Trial], question: Question, known: Known
) -> dict[str, Any] | None:
    """Return what the storage could have fed where the host gave out first, by the most that it was seen to give."""
    if limited_by["what"] not in HOST:
        return None
    one = question.threshold_percent / 100 * known.mb_per_accelerator
    return {"storage_could_feed": max(shown, int(_storage_mb_per_second(trials, known) / one)) if one else None}


def _naive_seconds(last: int, counts: Sequence[Count], known: Known) -> float:
    """Return the time of running every count up to the last one at full length, at the AU measured or 100 %."""
    measured = {count.accelerators: count.au_percent for count in counts if count.au_percent > 0}
    return sum(
        known.naive_seconds_per_trial * 100 / min(100.0, measured.get(number, 100.0)) for number in range(1, last + 1)
    )
