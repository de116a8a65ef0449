"""A search on the terminal and on its page: how many accelerators pass, what limits the next one, and the trials."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from dlemu.metrics.catalogue import RUN
from dlemu.metrics.verdict import HOST_LIMITS, Outcome
from dlemu.report.any_run import further_reasons
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Table, Tone, columns
from dlemu.report.units import duration, number, plain, verdict_word, with_uncertainty
from dlemu.results.figures import JobFigures, Value
from dlemu.results.kinds import Parts
from dlemu.results.wording import at_scale
from dlemu.studies.answers import CountResult, SizeAnswer
from dlemu.studies.conditions import background
from dlemu.studies.size.size_verdict import at_full_size, cause_of, counts_in_words, limit_in_words

KIND_OF_TRIALS = "training"  # name of the kind of job that each trial runs
_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad"}
_SHOWN_COUNTS = 3  # on the first screen


def figures_of_count(answer: SizeAnswer, result: CountResult) -> JobFigures:
    """Return the figures of all trials with one count of accelerators: means, except for the AU, which `result` has."""
    trials = [trial for trial in answer.trials if trial.accelerators == result.accelerators]
    limit, failing = cause_of(trials), answer.failing
    if failing is not None and answer.max_accelerators < result.accelerators <= failing.accelerators:
        limit = answer.limited_by  # the answer says what kept these counts from passing
    outcome: Outcome = "undecided"
    if result.passed:
        outcome = "pass"
    elif limit.what in HOST_LIMITS:
        outcome = "no verdict"  # as for a run that its host limits
    elif result.passed is False:
        outcome = "fail"
    means_by_metric: dict[str, list[float]] = {}
    for trial in trials:
        for name, value in trial.figures.metrics.items():
            means_by_metric.setdefault(name, []).append(value.mean)
    metrics = {name: Value(sum(means) / len(means)) for name, means in means_by_metric.items()}
    return JobFigures(
        kind=KIND_OF_TRIALS,
        workload=answer.question.workload,
        accelerator=answer.question.accelerator,
        sample_divisor=answer.question.sample_divisor,
        ranks=result.accelerators,
        outcome=outcome,
        limited_by={RUN: limit.what if limit.confidence else None},
        threshold_percent=answer.question.threshold_percent,
        metrics=metrics | {"au_sustained_percent": Value(result.au_sustained_percent, result.half_width_percent)},
    )


def screen(answer: SizeAnswer, folder: str) -> Screen:
    """Return the first screen: how many accelerators pass, the AU of counts around that, the limit, and advice."""
    question = answer.question
    lines = list(_answer_lines(answer))
    lines += [Said("note", issue, tone="caution") for issue in answer.issues]
    # Show the largest count that passes, and those above it; the smallest ones if none passes.
    first_shown = max(0, sum(result.accelerators <= answer.max_accelerators for result in answer.counts) - 1)
    for result in answer.counts[first_shown : first_shown + _SHOWN_COUNTS]:
        au = with_uncertainty(result.au_sustained_percent, result.half_width_percent, question.threshold_percent)
        verdict = verdict_word(result.passed, unknown="too close to call")
        lines.append(Said(f"{result.accelerators:>3}", f"AU {au}: {verdict}"))
    lines += _limit_lines(answer)
    shares = [share for trial in answer.trials if (share := trial.figures.from_storage_percent) is not None]
    if shares:
        lines.append(Said("proof", f"{min(shares):.0f} % of the bytes came from storage", "in each trial, at least"))
    if answer.complete:
        lines.append(Said("next", f"the same on another storage, then dlemu compare {shlex.quote(folder)} ITS-RESULT"))
    subject = " on ".join(filter(None, [question.workload, question.accelerator]))
    took = duration(sum(trial.seconds for trial in answer.trials))
    title = f"{subject}: how many accelerators does this storage feed? ({took})"
    return Screen(title=title, lines=lines, folder=folder)


def _answer_lines(answer: SizeAnswer) -> Iterator[Said]:
    """Yield the answer at full size, if a scale made the samples smaller, and the outcome."""
    if answer.full_size is not None:  # first, so that nobody mistakes accelerators of small samples for real ones
        yield Said("answer", at_full_size(answer, answer.full_size), "computed, not measured", tone="strong")
    outcome = answer.outcome or "no verdict"
    label = outcome.upper() if answer.complete else "INCOMPLETE"
    text = counts_in_words(answer) if answer.verdict else "the search was interrupted"
    if answer.at_least:
        scale = at_scale(answer.question.sample_divisor)
        text = f"{answer.max_accelerators} of {answer.at_least} wanted{scale}. {text}"
    elif label == "PASS":  # the user did not ask whether a number passes
        label = "measured" if answer.full_size else "answer"
    yield Said(label, text, tone=_TONES.get(outcome, "open"))


def _limit_lines(answer: SizeAnswer) -> Iterator[Said]:
    """Yield what limits the next count, what it needs from the storage, and what to do first."""
    limit, full, threshold = answer.limited_by, answer.full_size, answer.question.threshold_percent
    reason = "" if limit.what in ("count", "host") else "".join(limit.evidence[:1])  # `limit_in_words` says those
    yield Said("limit", limit_in_words(answer), reason)
    supplied = answer.storage_mb_per_second
    needs = f"for AU {threshold:g} % {answer.max_accelerators + 1} need {rate(answer.wanted_mb_per_second)}"
    yield Said("needs", f"{needs}; the storage gave up to {rate(supplied)}", "in trials or a probe that never waits")
    advice = "".join(limit.advice[:1])
    if full is not None and not full.accelerators and limit.what == "storage" and supplied:
        speedup = full.mb_per_accelerator * threshold / 100 / supplied
        advice = f"a storage {speedup:,.2g} times as fast, for one accelerator at real size"
    if advice:
        yield Said("to do", advice, tone="strong")


def _sections(answer: SizeAnswer, folder: str) -> Iterator[Table]:
    yield from further_reasons(answer.limited_by)
    rows = [
        (
            str(trial.accelerators),
            with_uncertainty(trial.sustained.au_percent, trial.sustained.half_width_percent),
            number(trial.mb_per_second),
            number(trial.figures.mean("device_mb_per_second")),
            number(trial.seconds),
            plain(trial.sustained.decides(answer.question.threshold_percent)),
        )
        for trial in answer.trials
    ]
    head = columns("accelerators", "AU, %", "loader MB/s", "device MB/s", "seconds", "settled", right=range(5))
    notes = ["AU: of the steady part of a trial; MB/s: of the whole, its start and end included"]
    yield Table(title="Trials, in order", columns=head, rows=rows, notes=notes)
    yield from background(folder, [trial.folder for trial in answer.trials])


def _charts(answer: SizeAnswer, _: str) -> Iterator[tuple[str, Any]]:
    from dlemu.studies.figures import Point, charts

    counts = [figures_of_count(answer, result) for result in answer.counts]
    return charts(Point(figures.title, {}, figures) for figures in counts)


PARTS = Parts(answer_type=SizeAnswer, screen=screen, sections=_sections, charts=_charts)
