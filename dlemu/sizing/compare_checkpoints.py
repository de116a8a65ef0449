"""Two runs of checkpoints beside each other: rates and times of writing and reading, with their uncertainty."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from datagen.errors import UserError
from dlemu.emulator.environment import HostFacts, StorageFacts
from dlemu.metrics.checkpoint_rates import GIB, CheckpointTimes
from dlemu.results.answer_files import ANSWER_VERSION
from dlemu.results.checkpoint_folder import read_checkpoint_run
from dlemu.results.checkpoint_run import CheckpointRun
from dlemu.results.checkpoint_summary import CheckpointFacts, CheckpointSummary, PhaseSummary
from dlemu.results.folder import holds_checkpoints, holds_run
from dlemu.sizing.answers import SIZE, SWEEP, CheckpointFigures, Difference, Value
from dlemu.sizing.compare_sides import difference, difference_in_time
from dlemu.sizing.sides import differing_hosts, half_width_of

COMPARE_CHECKPOINTS = "compare_checkpoints.json"
_ITS_OWN = frozenset({"folder", "kept"})
"""Facts of a run that say nothing of how it was measured."""
_OF_THE_MODEL = frozenset({"model", "parameters", "files", "bytes", "tensor_bytes", "ranks_of_job", "first_rank"})
"""Facts that differ by themselves where model or ranks do."""
_LOUD = ("STORAGE WAS NOT READ", "THE STORAGE IS MEMORY")


@dataclass(frozen=True, kw_only=True)
class ComparedCheckpoints:
    """One run of checkpoints."""

    name: str
    """Its folder."""
    title: str
    workload: str = ""
    """Lacking in older files."""
    verdict: str = ""
    """Empty, as `what` is None, of a result that is not dlemu's."""
    complete: bool
    started_at: str = ""
    ranks: int
    what: CheckpointFacts | None = None
    write_seconds: tuple[float, ...] = ()
    """Of each checkpoint, by its slowest rank."""
    read_seconds: tuple[float, ...] = ()
    write_limited_by: str | None = None
    read_limited_by: str | None = None
    hosts: tuple[HostFacts, ...] = ()
    storage: StorageFacts | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointComparison:
    """Two runs of checkpoints: compare_checkpoints.json."""

    schema_version: int = ANSWER_VERSION
    a: str
    """Names: folders."""
    b: str
    verdict: str
    """The answer as a sentence."""
    metrics: dict[str, Difference]
    """By name; those that both sides have. The repetitions are a run's checkpoints."""
    sides: tuple[ComparedCheckpoints, ComparedCheckpoints]
    issues: tuple[str, ...] = ()
    """What beside the storage differs, as sentences."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSide:
    """One run of checkpoints, dlemu's or DLIO's, ready to be compared."""

    shown: ComparedCheckpoints
    metrics: Mapping[str, Value]
    transfer_size: int | None = None
    """None where it is not known."""
    warnings: tuple[str, ...] = ()
    """What a reader of its numbers must know."""


Foreign = Callable[[str], CheckpointSide | None]
"""Reads the folder of a result that is not dlemu's, None where it holds none of checkpoints alone.

Raises UserError for one that can't be compared.
"""


def checkpoint_sides(
    folders: Sequence[str], extras: Sequence[object] = (), foreign: Foreign | None = None
) -> tuple[CheckpointSide, CheckpointSide] | None:
    """Return the runs of checkpoints that are to be compared, None where the folders hold something else.

    Raises UserError when they are not two of one kind, or when `extras` (prices, watts, years; None where not given)
    come with them.
    """
    sides = [_side_in(folder, foreign) for folder in folders]
    found = [side for side in sides if side is not None]
    if not found:
        return None
    if len(folders) != 2:
        raise UserError(
            f"{' '.join(folders)}: a run of checkpoints is compared with one other; wanted two folders of "
            "`dlemu checkpoint`, or of DLIO's checkpoints"
        )
    if len(found) != 2:
        one, other = (folders[0], folders[1]) if sides[1] is None else (folders[1], folders[0])
        raise UserError(
            f"{one} is a run of checkpoints and {other} is not: wanted two folders of `dlemu checkpoint`, or two of "
            "training"
        )
    if any(given is not None for given in extras):
        raise UserError(
            "price, watts, years and energy price are shared out over the accelerators that a storage feeds, and these "
            "are runs of checkpoints: leave them out"
        )
    return found[0], found[1]


def _side_in(folder: str, foreign: Foreign | None) -> CheckpointSide | None:
    if holds_checkpoints(folder):
        return side_of_checkpoints(read_checkpoint_run(folder))
    others = holds_run(folder) or any(os.path.exists(os.path.join(folder, name)) for name in (SIZE, SWEEP))
    return None if others or foreign is None else foreign(folder)


def compare_checkpoints(a: CheckpointSide, b: CheckpointSide) -> CheckpointComparison:
    """Return A beside B; raises UserError when one only wrote and the other only read."""
    metrics = {name: difference(value, b.metrics[name]) for name, value in a.metrics.items() if name in b.metrics}
    if not {"write_slowest_seconds", "read_slowest_seconds"} & metrics.keys():
        raise UserError(
            f"{a.shown.name} and {b.shown.name} have no phase in common: {_phases(a)} against {_phases(b)}; "
            "wanted two that both wrote, or both read"
        )
    comparison = CheckpointComparison(
        a=a.shown.name,
        b=b.shown.name,
        verdict="",
        metrics=metrics,
        sides=(a.shown, b.shown),
        issues=tuple(_issues(a, b)),
    )
    return replace(comparison, verdict=_sentence(comparison))


def checkpoint_figures(summary: CheckpointSummary) -> CheckpointFigures:
    """Return what is compared of a run."""
    write, read = summary.write, summary.read
    return CheckpointFigures(
        workload=summary.workload,
        ranks=summary.ranks,
        verdict=summary.verdict,
        write_limited_by=write.limited_by.what if write and write.limited_by else None,
        read_limited_by=read.limited_by.what if read and read.limited_by else None,
        metrics=dict(_metrics(summary)),
    )


def _metrics(summary: CheckpointSummary) -> Iterator[tuple[str, Value]]:
    """Yield what is compared, in the order in which it is shown."""
    yield "checkpoint_gib", Value(summary.what.tensor_bytes / GIB, None)
    for name, phase in (("write", summary.write), ("read", summary.read)):
        if phase is not None:
            yield from (
                (f"{name}_{key}", value) for key, value in _of_phase(phase, summary.what, writes=name == "write")
            )
    if summary.training is not None:
        yield "training_percent", Value(summary.training.percent, None)
    behind = summary.asynchronous
    if behind is not None:
        yield "asynchronous_au_percent", Value(behind.au_percent, None)
        if behind.safe_seconds is not None and summary.write is not None:
            yield "asynchronous_safe_seconds", _over(summary.write, lambda part: part.safe_seconds)


def _of_phase(phase: PhaseSummary, what: CheckpointFacts, *, writes: bool) -> Iterator[tuple[str, Value]]:
    yield "slowest_gib_per_second", _over(phase, lambda part: part.slowest_gib_per_second or 0.0)
    yield "slowest_seconds", _over(phase, lambda part: part.slowest_seconds)
    yield "rank0_gib_per_second", _over(phase, lambda part: part.rank0_gib_per_second or 0.0)
    if phase.wall_gb_per_second is not None:
        width = _over(phase, lambda part: part.wall_gb_per_second or 0.0).half_width
        yield "wall_gb_per_second", Value(phase.wall_gb_per_second, width)
    if writes:
        width = _over(phase, lambda part: part.fsync_percent).half_width
        # Without fsync the share is that of two looks at the clock: nothing to divide by.
        yield "fsync_percent", Value(phase.fsync_percent, width) if what.fsync else Value(0.0, None)
    elif phase.from_storage_percent is not None:
        yield "from_storage_percent", Value(phase.from_storage_percent, None)
    if phase.device_mb_per_second is not None:
        yield "device_mb_per_second", Value(phase.device_mb_per_second, None)
    if phase.cpu_seconds_per_gb is not None:
        yield "cpu_seconds_per_gb", Value(phase.cpu_seconds_per_gb, None)


def _over(phase: PhaseSummary, value: Callable[[CheckpointTimes], float]) -> Value:
    return mean_over([value(part) for part in phase.checkpoints])


def mean_over(values: Sequence[float]) -> Value:
    """Return the mean of a figure over checkpoints, with the half width of its 95 % interval from two on."""
    return Value(float(np.mean(values)), half_width_of(values))


def _phases(side: CheckpointSide) -> str:
    known = (("written", "write_slowest_seconds"), ("read", "read_slowest_seconds"))
    names = [name for name, key in known if key in side.metrics]
    return f"checkpoints {' and '.join(names)}" if names else "no checkpoint was complete"


def side_of_checkpoints(run: CheckpointRun) -> CheckpointSide:
    """Return a run of dlemu's as one side."""
    summary, figures = run.summary, checkpoint_figures(run.summary)
    shown = ComparedCheckpoints(
        name=run.folder,
        title=summary.title,
        workload=summary.workload,
        verdict=summary.verdict,
        complete=summary.complete,
        started_at=summary.started_at,
        ranks=summary.ranks,
        what=summary.what,
        write_seconds=_seconds(summary.write),
        read_seconds=_seconds(summary.read),
        write_limited_by=figures.write_limited_by,
        read_limited_by=figures.read_limited_by,
        hosts=summary.environment.hosts,
        storage=summary.environment.storage,
    )
    return CheckpointSide(
        shown=shown,
        metrics=figures.metrics,
        transfer_size=run.facts.workload.checkpoint.transfer_size,
        warnings=(
            *(() if summary.complete else (summary.verdict,)),
            *(issue for issue in summary.issues if issue.startswith(_LOUD)),
        ),
    )


def _seconds(phase: PhaseSummary | None) -> tuple[float, ...]:
    return tuple(part.slowest_seconds for part in phase.checkpoints) if phase is not None else ()


def _issues(a: CheckpointSide, b: CheckpointSide) -> Iterator[str]:
    """Yield a sentence for whatever makes the difference more than the storage's, and what each side warns of."""
    one, other = a.shown, b.shown
    if one.title != other.title:
        yield f"A is of {one.title} and B of {other.title}: the difference is not the storage's alone"
    if one.what is not None and other.what is not None:
        told = _ITS_OWN | (_OF_THE_MODEL if one.title != other.title else frozenset())
        for key in (field.name for field in fields(CheckpointFacts) if field.name not in told):
            values = getattr(one.what, key), getattr(other.what, key)
            if values[0] != values[1]:
                yield f"{key} was {values[0]} for A and {values[1]} for B"
        if a.transfer_size != b.transfer_size:
            yield f"checkpoint.transfer_size was {a.transfer_size} for A and {b.transfer_size} for B"
        yield from differing_hosts(one.hosts, other.hosts)
    for name, side in (("A", a), ("B", b)):
        yield from (f"{name}: {warning}" for warning in side.warnings)


def _sentence(comparison: CheckpointComparison) -> str:
    """Return what it comes to: the time that a checkpoint takes, written and read, and what limited it."""
    a, b = comparison.sides
    said = []
    for verb, key, limits in (
        ("writing", "write_slowest_seconds", (a.write_limited_by, b.write_limited_by)),
        ("reading", "read_slowest_seconds", (a.read_limited_by, b.read_limited_by)),
    ):
        if key in comparison.metrics:
            time = f"{verb}: {difference_in_time(comparison.metrics[key], repeated='checkpoints')}"
            known = [limit or "not known" for limit in limits]
            by = f"both limited by {known[0]}" if known[0] == known[1] else f"limited by {known[0]} and {known[1]}"
            said.append(f"{time}, {by}" if any(limits) else time)
    return "; ".join(said)
