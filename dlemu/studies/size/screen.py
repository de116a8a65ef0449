"""The first screen of a search: how many accelerators, what each count beside the edge reached, what limits it."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.report.screen import Said, Screen, rate, with_uncertainty
from dlemu.report.table import Tone
from dlemu.report.units import duration, verdict_word
from dlemu.results.wording import count
from dlemu.studies.answers import CountResult, SizeAnswer
from dlemu.studies.size.size_verdict import at_full_size

TONES: dict[str, Tone] = {"pass": "good", "fail": "bad"}
_SHOWN_COUNTS = 3


def screen(answer: SizeAnswer, folder: str) -> Screen:
    """Return what is said first of a search whose trials are in a folder."""
    question = answer.question
    what = " on ".join(filter(None, [question.workload, question.accelerator]))
    lines = [*_answer(answer), *_counts(answer), *_limit(answer)]
    if answer.full_size is not None:
        lines.append(Said("full size", at_full_size(answer), tone="strong"))
    naive = f"every count up to the edge at full length would take {duration(answer.naive_seconds)}"
    lines.append(Said("took", f"{count(len(answer.trials), 'trial')}, {duration(answer.seconds)}", naive))
    title = f"{what}: how many accelerators does this storage feed?"
    return Screen(title=title, lines=lines, notes=answer.issues, folder=folder)


def _answer(answer: SizeAnswer) -> Iterator[Said]:
    word = answer.outcome or verdict_word(answer.passed)
    sentence = answer.verdict or "the search was interrupted"
    if answer.at_least:
        sentence = f"{answer.max_accelerators} of {answer.at_least} wanted{answer.scaled}. {sentence}"
    yield Said(word.upper() if answer.complete else "INCOMPLETE", sentence, tone=TONES.get(word, "open"))


def _counts(answer: SizeAnswer) -> Iterator[Said]:
    """Yield the counts around the edge: the largest that passes, and those above it."""
    below = [tried for tried in answer.counts if tried.accelerators <= answer.max_accelerators]
    above = [tried for tried in answer.counts if tried.accelerators > answer.max_accelerators]
    for tried in [*below[-1:], *above][:_SHOWN_COUNTS]:
        yield Said(f"{tried.accelerators:>3}", _reached(answer, tried))


def _reached(answer: SizeAnswer, tried: CountResult) -> str:
    rates = [trial.app_mb_per_second for trial in answer.trials_of(tried.accelerators)]
    read = f", read {rate(sum(rates) / len(rates))}" if rates else ""
    word = verdict_word(tried.passed, unknown="too close to call")
    au = with_uncertainty(tried.au_sustained_percent, tried.half_width_percent, answer.question.threshold_percent)
    return f"AU {au}{read}: {word} ({answer.question.threshold_percent:g} % needed)"


def _limit(answer: SizeAnswer) -> Iterator[Said]:
    limit, more = answer.limited_by, answer.for_one_more
    why = f": {limit.evidence[0]}" if limit.evidence else ""
    yield Said("limit", f"{limit.name}{why}")
    most = "least" if answer.host_only else "most"
    delivered = f"in trials and read probe it delivered at {most} {rate(answer.storage_mb_per_second)}"
    yield Said("needs", f"{rate(more.wanted_mb_per_second)} for {more.accelerators}; {delivered}")
