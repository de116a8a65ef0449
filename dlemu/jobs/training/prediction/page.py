"""A prediction as tables and sentences, for the terminal and for its HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.jobs.training.prediction.prediction import PREDICTED, Prediction
from dlemu.jobs.training.prediction.run_prediction import read_prediction
from dlemu.report.any_run import listed
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Section, Tone
from dlemu.report.units import with_uncertainty
from dlemu.results.kinds import Parts
from dlemu.results.wording import scaled

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure

_SHOWN_COUNTS = 3  # the largest that passes and the next
_WORDS = {True: "pass", False: "fail", None: "too close to call"}


def _screen(answer: Prediction, folder: str) -> Screen:
    limit = answer.limited_by
    what = "not known" if (limit.what, limit.confidence) == ("nothing", "low") else limit.what
    passed, needed, read = answer.shown.passed, answer.shown.needed_mb_per_second, answer.shown.app_mb_per_second
    tone: Tone = "open" if passed is None else "good" if passed else "bad"
    verdict = answer.verdict.removeprefix(f"{PREDICTED}: ").replace("+-", "±")
    lines = [Said(PREDICTED, verdict, tone=tone)]
    for one in [one for one in answer.counts[:_SHOWN_COUNTS] if one is not answer.shown]:
        low, high = one.au_sustained_interval_percent
        au = with_uncertainty(one.verdict_au("sustained"), (high - low) / 2, answer.question.threshold_percent)
        lines.append(Said(f"{one.accelerators:>3}", f"AU {au}, {rate(one.app_mb_per_second)}: {_WORDS[one.passed]}"))
    lines += [
        Said("limit", f"{what}: {limit.evidence[-1]}"),
        Said("needs", f"{rate(needed)} for {answer.accelerators} to pass; they read {rate(read)} over whole epochs"),
        Said("check", f"speed / demand alone says {answer.null_max_accelerators} pass"),
        Said("from", answer.source),
    ]
    return Screen(title=_title(answer), lines=lines, notes=answer.issues, folder=folder)


def _sections(answer: Prediction, _: str) -> Iterator[Section]:
    yield from listed("Each number of accelerators", answer.counts)
    yield from listed("What the storage delivers", answer.curve)


def _charts(answer: Prediction, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.jobs.training.prediction.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, answer)


def _title(answer: Prediction) -> str:
    question = answer.question
    kind = f" on {question.accelerator}" if question.accelerator else ""
    hosts = f", {question.hosts} hosts" if question.hosts > 1 else ""
    return f"{question.workload}{kind}{scaled(question.sample_divisor)}: predicted{hosts}"


PARTS = Parts(
    read=read_prediction,
    answer_type=Prediction,
    screen=_screen,
    sections=_sections,
    charts=_charts,
)
