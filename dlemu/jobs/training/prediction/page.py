"""A prediction as tables and sentences, for the terminal and for its HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.jobs.training.prediction.prediction import PREDICTED, PredictedCount, Prediction
from dlemu.jobs.training.prediction.run_prediction import read_prediction
from dlemu.report.screen import Said, Screen, rate, with_uncertainty
from dlemu.report.table import Cell, Section, Table, Tone, Words, columns
from dlemu.report.units import number
from dlemu.results.drive import taken_by_others
from dlemu.results.kinds import Parts
from dlemu.results.wording import count, scaled

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure

_SHOWN_COUNTS = 3  # the largest that passes and the next


def _screen(answer: Prediction, folder: str) -> Screen:
    null, limit = answer.null_model, answer.limited_by
    lines = [Said("predicted", answer.verdict.removeprefix(f"{PREDICTED}: "), tone=_tone(answer))]
    for one in answer.counts[:_SHOWN_COUNTS]:
        low, high = one.au_sustained_interval_percent
        au = with_uncertainty(one.verdict_au("sustained"), (high - low) / 2)
        word = {True: "pass", False: "fail", None: "too close to call"}[one.passed]
        lines.append(Said(f"{one.accelerators:>3}", f"AU {au}, {rate(one.app_mb_per_second)}: {word}"))
    what = "not known" if (limit.what, limit.confidence) == ("nothing", "low") else limit.what
    lines += [
        Said("limit", f"{what}: {limit.evidence[0]}"),
        Said("needs", f"{rate(answer.needed_mb_per_second)} for {answer.accelerators} to pass"),
        Said("check", f"speed / demand alone says {null.max_accelerators} pass"),
        Said("from", _storage(answer)),
    ]
    return Screen(title=_title(answer), lines=lines, notes=answer.issues, folder=folder)


def _sections(answer: Prediction, _: str) -> Iterator[Section]:
    yield Words(f"Limited by: {answer.limited_by.what}", answer.limited_by.evidence)
    yield Words("The null model", [_null(answer)])
    yield _counts_table(answer)
    curve = [(str(point.readers), number(point.mb_per_second)) for point in answer.calibration.curve]
    head = columns("readers", "MB/s", right=range(2))
    yield Table(title="What the storage delivers", columns=head, rows=curve)


def _charts(answer: Prediction, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.jobs.training.prediction.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, answer)


def _title(answer: Prediction) -> str:
    question = answer.question
    kind = f" on {question.accelerator}" if question.accelerator else ""
    hosts = f", {question.hosts} hosts" if question.hosts > 1 else ""
    return f"{question.workload}{kind}{scaled(question.sample_divisor)}: predicted{hosts}"


def _storage(answer: Prediction) -> str:
    calibration = answer.calibration
    return calibration.source + taken_by_others(calibration.others_mb_per_second)


def _tone(answer: Prediction) -> Tone:
    return "open" if answer.passed is None else "good" if answer.passed else "bad"


def _null(answer: Prediction) -> str:
    null, needed = answer.null_model, answer.needed_mb_per_second
    who = f"{count(answer.accelerators, 'accelerator')} need{'s' * (answer.accelerators == 1)}"
    at_least = "" if answer.calibration.saturated else "at least "
    return (
        f"null model (only speed / demand): {at_least}{null.max_accelerators} pass; {answer.accelerators} would have "
        f"AU {null.au_percent:.1f} %, {number(null.samples_per_second)} samples/s; {who} {number(needed)} MB/s to pass"
    )


def _counts_table(answer: Prediction) -> Table:
    def row(count: PredictedCount) -> tuple[Cell, ...]:
        low, high = count.au_sustained_interval_percent
        word = {True: "pass", False: "fail", None: "open"}[count.passed]
        return (
            str(count.accelerators),
            word,
            f"{count.verdict_au('sustained'):.1f}",
            f"{low:.1f}-{high:.1f}",
            f"{count.au_percent:.1f}",
            f"{count.au_whole_percent:.1f}",
            "-" if count.au_dlio_percent is None else f"{count.au_dlio_percent:.1f}",
            number(count.samples_per_second),
            number(count.app_mb_per_second),
            f"{count.null_model.au_percent:.1f}",
        )

    names = (
        "n",
        "",
        "AU %",
        "interval\n%",
        "counted\nsteps",
        "whole\n%",
        "DLIO\n%",
        "samples\n/s",
        "MB/s",
        "null\nAU %",
    )
    head = columns(*names, right=(0, *range(2, 10)), whole=range(10))
    return Table(title=_title(answer), columns=head, rows=[row(count) for count in answer.counts])


PARTS = Parts(
    read=read_prediction,
    answer_type=Prediction,
    screen=_screen,
    sections=_sections,
    charts=_charts,
)
