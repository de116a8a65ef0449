"""A prediction as tables and sentences, for the terminal and for its HTML page."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.jobs.training.prediction.prediction import PREDICTED, Prediction
from dlemu.jobs.training.prediction.run_prediction import read_prediction
from dlemu.report.any_run import listed
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Table, Tone
from dlemu.report.units import with_uncertainty
from dlemu.results.kinds import Parts
from dlemu.results.wording import scaled

_SHOWN_COUNTS = 3  # lines for numbers of accelerators: about those around the largest that passes
_VERDICTS = {True: "pass", False: "fail", None: "too close to call"}
_TONES: dict[bool | None, Tone] = {True: "good", False: "bad", None: "open"}


def _screen(answer: Prediction, folder: str) -> Screen:
    limit, shown = answer.limited_by, answer.shown
    what = "not known" if limit.what == "nothing" and limit.confidence == "low" else limit.what
    needed, read = rate(shown.needed_mb_per_second), rate(shown.app_mb_per_second)
    tone = _TONES[shown.passed]
    verdict = answer.verdict.removeprefix(f"{PREDICTED}: ").replace("+-", "±")
    lines = [Said(PREDICTED, verdict, tone=tone)]
    for count in answer.counts[:_SHOWN_COUNTS]:
        if count is not shown:
            low, high = count.au_sustained_interval_percent
            au = with_uncertainty(count.au_sustained_percent, (high - low) / 2, answer.question.threshold_percent)
            au_and_rate = f"AU {au}, {rate(count.app_mb_per_second)}"
            lines.append(Said(f"{count.accelerators:>3}", f"{au_and_rate}: {_VERDICTS[count.passed]}"))
    lines += [
        Said("limit", f"{what}: {limit.evidence[-1]}"),
        Said("needs", f"{needed} for {answer.accelerators} to pass; they read {read} over whole epochs"),
        Said("check", f"arithmetic alone (speed / demand of one) says {answer.null_max_accelerators} pass"),
        Said("from", answer.source),
    ]
    return Screen(title=_title(answer), lines=lines, notes=answer.issues, folder=folder)


def _sections(answer: Prediction, _: str) -> Iterator[Table]:
    yield from listed("Each number of accelerators", answer.counts)
    yield from listed("What the storage delivers", answer.curve)


def _title(answer: Prediction) -> str:
    question = answer.question
    hardware = f" on {question.accelerator}" if question.accelerator else ""
    if answer.max_accelerators_interval is None:  # a number of accelerators was requested
        hardware = f", {answer.accelerators} x {question.accelerator or 'accelerator'}"
    hosts = f", {question.hosts} hosts" if question.hosts > 1 else ""
    return f"{question.workload}{hardware}{scaled(question.sample_divisor)}: predicted{hosts}"


PARTS = Parts(read=read_prediction, answer_type=Prediction, screen=_screen, sections=_sections)
