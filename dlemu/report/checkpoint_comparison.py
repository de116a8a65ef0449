"""Two runs of checkpoints beside each other: what terminal and page say of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from rich.console import Console

from datagen.errors import UserError
from dlemu.report.comparison_report import full_rows, host_facts, short_rows
from dlemu.report.page import Page, TileRow, Words, tiles
from dlemu.report.table import Line, Table, columns, print_lines, print_table
from dlemu.report.units import flat, plain, side_names
from dlemu.results.answer_files import read_answer
from dlemu.results.checkpoint_summary import CheckpointFacts
from dlemu.sizing.compare_checkpoints import COMPARE_CHECKPOINTS, CheckpointComparison, ComparedCheckpoints

METRICS = {
    "checkpoint_gib": ("tensors of one checkpoint", "GiB"),
    "write_slowest_gib_per_second": ("written, slowest rank", "GiB/s"),
    "write_slowest_seconds": ("one checkpoint written", "s"),
    "write_fsync_percent": ("fsync, of that time", "%"),
    "write_rank0_gib_per_second": ("written, as DLIO", "GiB/s"),
    "write_wall_gb_per_second": ("written, on the wall", "GB/s"),
    "write_device_mb_per_second": ("written to the devices", "MB/s"),
    "write_cpu_seconds_per_gb": ("CPU of writing", "s/GB"),
    "read_slowest_gib_per_second": ("read, slowest rank", "GiB/s"),
    "read_slowest_seconds": ("one checkpoint read", "s"),
    "read_from_storage_percent": ("read from storage", "%"),
    "read_rank0_gib_per_second": ("read, as DLIO", "GiB/s"),
    "read_wall_gb_per_second": ("read, on the wall", "GB/s"),
    "read_device_mb_per_second": ("read from the devices", "MB/s"),
    "read_cpu_seconds_per_gb": ("CPU of reading", "s/GB"),
    "training_percent": ("of a training's time", "%"),
    "asynchronous_au_percent": ("AU, asynchronous", "%"),
    "asynchronous_safe_seconds": ("safe after, asynchronous", "s"),
}
"""Compared metrics: in words, and their units."""


@dataclass(frozen=True)
class OpenedCheckpointComparison:
    """A comparison of checkpoints with the folder it lies in."""

    folder: str
    answer: CheckpointComparison

    @cached_property
    def names(self) -> tuple[str, str]:
        """What figures call the sides."""
        return side_names(self.answer.a, self.answer.b)


def open_checkpoint_comparison(folder: str) -> OpenedCheckpointComparison:
    """Read the folder that `dlemu compare` left of two runs of checkpoints; raises UserError for a damaged one."""
    answer = read_answer(folder, COMPARE_CHECKPOINTS, CheckpointComparison)
    if answer is None or not answer.metrics.keys() <= METRICS.keys():
        path = os.path.join(folder, COMPARE_CHECKPOINTS)
        raise UserError(f"{path} is not there, or of another version of dlemu; name the folder of a comparison")
    return OpenedCheckpointComparison(folder, answer)


def print_checkpoint_comparison(answer: CheckpointComparison, console: Console) -> None:
    """Print one table, what makes the difference more than the storage's, and the verdict."""
    print_lines([f"A: {answer.a}", f"B: {answer.b}"], console)
    head = columns("metric", "A", "B", "A to B", "+-", right=range(1, 5), whole=range(5))
    rows = [*short_rows(answer.metrics, METRICS), *_limits(answer)]
    print_table(Table(title=answer.sides[0].title, columns=head, rows=rows), console)
    print_lines([Line(f"- {issue}", "caution") for issue in answer.issues], console)
    print_lines([Line(answer.verdict, "strong")], console, wrap=True)


def checkpoint_comparison_page(comparison: OpenedCheckpointComparison) -> Page:
    """Return what stands on the page of a comparison of checkpoints."""
    answer = comparison.answer
    return Page(
        title=" against ".join(comparison.names),
        lead=f"A is {answer.a}. B is {answer.b}. {answer.sides[0].title}.",
        state="open",
        verdict=("A to B", f": {answer.verdict}"),
        tiles=tiles(answer, _tiles(answer)),
        words=[Words("What to know about these numbers", answer.issues)] if answer.issues else [],
        tables=list(_tables(answer)),
        source=os.path.basename(os.path.abspath(comparison.folder)),
    )


def _limits(answer: CheckpointComparison) -> Iterator[tuple[str, ...]]:
    a, b = answer.sides
    yield "writing limited by", a.write_limited_by or "-", b.write_limited_by or "-", "", ""
    yield "reading limited by", a.read_limited_by or "-", b.read_limited_by or "-", "", ""


def _tiles(answer: CheckpointComparison) -> Iterator[TileRow]:
    for phase, verb in (("write", "written"), ("read", "read")):
        key = f"{phase}_slowest_seconds"
        if key not in answer.metrics:
            continue
        width = answer.metrics[key].half_width_percent
        sure = "too few checkpoints: no interval" if width is None else f"+- {width:.1f}"
        yield f"time {verb}, A to B", f"metrics.{key}.difference_percent", "%", f"{sure}, slowest rank"
        for side in "ab":
            rate = f"metrics.{phase}_slowest_gib_per_second.{side}"
            yield f"{verb}, {side.upper()}", rate, "GiB/s", "by the slowest rank, mean"


def _tables(answer: CheckpointComparison) -> Iterator[Table]:
    head = columns("metric", "A", "B", "A to B", "+-", right=range(1, 5))
    yield Table(title="A and B", columns=head, rows=[*full_rows(answer.metrics, METRICS), *_limits(answer)])
    named = [field.name for field in fields(CheckpointFacts)] if any(side.what for side in answer.sides) else []
    facts = zip(*(_facts(side, named) for side in answer.sides), strict=True)
    where = [(name, fact, other) for (name, fact), (_, other) in facts]
    yield Table(title="What was measured, and where", columns=columns("", "A", "B"), rows=where)


def _facts(side: ComparedCheckpoints, named: Sequence[str]) -> Sequence[tuple[str, str]]:
    storage, known = side.storage, dict(flat(side.what)) if side.what else {}
    return [
        ("measured", side.started_at or "not known"),
        ("ranks", str(side.ranks)),
        *((name.replace("_", " "), plain(known.get(name))) for name in named),
        *host_facts(side.hosts),
        ("file system", plain(storage.file_system if storage else None)),
    ]
