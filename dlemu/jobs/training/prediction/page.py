"""A prediction as tables and sentences, for the terminal and for its HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.jobs.training.prediction.prediction import PREDICTED, Prediction
from dlemu.jobs.training.prediction.run_prediction import read_prediction
from dlemu.report.screen import Said, Screen, rate, with_uncertainty
from dlemu.report.table import Section, Table, Tone, Words, columns
from dlemu.report.units import number
from dlemu.results.drive import taken_by_others
from dlemu.results.kinds import Parts
from dlemu.results.wording import scaled

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure

_SHOWN_COUNTS = 3  # the largest that passes and the next
_WORDS = {True: "pass", False: "fail", None: "too close to call"}


def _screen(answer: Prediction, folder: str) -> Screen:
    limit = answer.limited_by
    what = "not known" if (limit.what, limit.confidence) == ("nothing", "low") else limit.what
    passed = answer.shown.passed
    tone: Tone = "open" if passed is None else "good" if passed else "bad"
    lines = [Said("predicted", answer.verdict.removeprefix(f"{PREDICTED}: "), tone=tone)]
    for one in answer.counts[:_SHOWN_COUNTS]:
        low, high = one.au_sustained_interval_percent
        au = with_uncertainty(one.verdict_au("sustained"), (high - low) / 2, answer.question.threshold_percent)
        lines.append(Said(f"{one.accelerators:>3}", f"AU {au}, {rate(one.app_mb_per_second)}: {_WORDS[one.passed]}"))
    lines += [
        Said("limit", f"{what}: {limit.evidence[0]}"),
        Said("needs", f"{rate(answer.shown.needed_mb_per_second)} for {answer.accelerators} to pass"),
        Said("check", f"speed / demand alone says {answer.null_max_accelerators} pass"),
        Said("from", answer.source + taken_by_others(answer.others_mb_per_second)),
    ]
    return Screen(title=_title(answer), lines=lines, notes=answer.issues, folder=folder)


def _sections(answer: Prediction, _: str) -> Iterator[Section]:
    yield Words(f"Limited by: {answer.limited_by.what}", answer.limited_by.evidence)
    names = ("n", "", "AU %", "interval %", "counted steps", "whole %", "samples/s", "MB/s", "speed / demand: AU %")
    rows = [
        (
            str(one.accelerators),
            _WORDS[one.passed],
            f"{one.au_sustained_percent:.1f}",
            "{:.1f}-{:.1f}".format(*one.au_sustained_interval_percent),
            f"{one.au_percent:.1f}",
            f"{one.au_whole_percent:.1f}",
            number(one.samples_per_second),
            number(one.app_mb_per_second),
            f"{one.null_au_percent:.1f}",
        )
        for one in answer.counts
    ]
    yield Table(title=_title(answer), columns=columns(*names, right=(0, *range(2, 9)), whole=range(9)), rows=rows)
    curve = [(str(point.readers), number(point.mb_per_second)) for point in answer.curve]
    yield Table(title="What the storage delivers", columns=columns("readers", "MB/s", right=range(2)), rows=curve)


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
