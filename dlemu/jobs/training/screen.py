"""The first screen of a training run: did it pass, what limits it, is it the storage's number, what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.jobs.training.summary import Summary
from dlemu.jobs.training.wording import INCOMPLETE, verdict_word
from dlemu.metrics.verdict import VerdictCode
from dlemu.report.screen import Said, Screen, rate, with_uncertainty
from dlemu.report.table import Tone
from dlemu.report.units import duration, size
from dlemu.results.wording import count

_TONES: dict[bool | None, Tone] = {True: "good", False: "bad", None: "open"}
_JUDGED = (VerdictCode.PASS, VerdictCode.FAIL, VerdictCode.UNDECIDED)


def screen(summary: Summary, folder: str) -> Screen:
    """Return what is said first of a run whose results are in a folder."""
    lines = [_verdict(summary), *_delivered(summary), *_limit(summary), *_proof(summary)]
    cache = summary.page_cache
    memory = [] if summary.passed_from_memory or cache is None else [cache.warning]
    notes = [*filter(None, memory), *summary.issues]
    return Screen(title=_title(summary), lines=lines, notes=notes, folder=folder)


def _title(summary: Summary) -> str:
    storage, hosts, metrics = summary.environment.storage, summary.environment.hosts, summary.metrics
    below = f" ({storage.file_system} on {storage.device.rpartition('/')[2]})" if storage and storage.device else ""
    parts = [
        summary.name + (f" at scale={summary.scale}" if summary.scale else ""),
        f"{summary.emulated} on {summary.dataset.data_folder}{below}",
        *([f"{len(hosts)} hosts"] if len(hosts) > 1 else []),
        count(len(metrics.steps_per_epoch), "epoch"),
        *([duration(metrics.total_seconds)] if metrics.total_seconds is not None else []),
    ]
    return ", ".join(parts)


def _verdict(summary: Summary) -> Said:
    if not summary.complete:
        return Said(INCOMPLETE, f"{summary.failure}", tone="bad")
    if summary.passed_from_memory:
        return Said("memory", summary.headline, tone="strong")
    word, metrics = verdict_word(summary.verdict_code), summary.metrics
    tone = _TONES[summary.passed]
    if summary.verdict_code not in _JUDGED or metrics.sustained_percent is None:
        return Said(word, summary.verdict.removeprefix(f"{word}: "), tone=tone)
    width = metrics.au_uncertainty.expanded_percent if metrics.au_uncertainty else None
    alone = metrics.ceiling_au_percent
    ceiling = "" if alone is None else f"; this host alone reaches {with_uncertainty(alone, None)}"
    value = f"AU {with_uncertainty(metrics.sustained_percent, width, metrics.au_threshold_percent)}"
    return Said(word, value, f"{metrics.au_threshold_percent:g} % needed{ceiling}", tone=tone)


def _delivered(summary: Summary) -> Iterator[Said]:
    """Yield the rate of reading beside what the accelerators take when they never wait."""
    read, whole = summary.metrics.app_mb_per_second, summary.metrics.au_whole_percent
    if read is None or read.mean is None:
        return
    full = ""
    if whole is not None and whole.mean:
        full = f"; {count(summary.ranks, 'accelerator')} take {rate(read.mean * 100 / whole.mean)}"
    moved = f"{count(summary.metrics.samples or 0, 'sample')}, {size(summary.metrics.app_bytes or 0)}"
    yield Said("delivers", f"{rate(read.mean)}{full}", f"in training {moved}")


def _limit(summary: Summary) -> Iterator[Said]:
    limit = summary.limited_by
    if limit is None:
        return
    why = f": {limit.evidence[0]}" if limit.evidence else ""
    sure = "" if limit.what == "nothing" else f", confidence {limit.confidence}"
    yield Said("limit", f"{limit.what}{sure}{why}")
    if limit.advice:
        yield Said("to do", limit.advice[0], tone="strong")


def _proof(summary: Summary) -> Iterator[Said]:
    """Yield where the bytes came from, and whether each sample was read once."""
    share = summary.page_cache.from_storage_percent.mean if summary.page_cache else None
    known = "not known how many" if share is None else with_uncertainty(min(share, 100), None)
    source = f"{known} of the bytes came from storage"
    wrong = [str(epoch.epoch) for epoch in summary.audit if epoch.each_sample_once is False]
    if wrong:
        yield Said("proof", f"NOT each sample was read once in epoch {', '.join(wrong)}; {source}", tone="bad")
        return
    checked = ", each sample once" if summary.audit and all(epoch.each_sample_once for epoch in summary.audit) else ""
    yield Said("proof", source + checked)
