"""Two runs of checkpoints beside each other: rates and times of writing and reading, with their uncertainty. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from datagen.errors import UserError
from dlemu.emulator.environment import HostFacts, StorageFacts
from dlemu.metrics.checkpoint_rates import CheckpointTimes
from dlemu.metrics.t_interval import half_width
from dlemu.results.answer_files import ANSWER_VERSION
from dlemu.results.checkpoint_folder import read_checkpoint_run
from dlemu.results.checkpoint_run import CheckpointRun
from dlemu.results.checkpoint_summary import CheckpointFacts, CheckpointSummary, PhaseSummary
from dlemu.results.folder import holds_checkpoints
from dlemu.sizing.answers import Difference, Value
from dlemu.sizing.compare_sides import difference, difference_in_time
from dlemu.sizing.sides import CONFIDENCE, differing_hosts

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
    verdict: str
    complete: bool
    started_at: str = ""
    ranks: int
    what: CheckpointFacts
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


def are_checkpoints(folders: Sequence[str], extras: Sequence[object] = ()) -> bool:
    """Say whether folders that are to be compared are those of runs of checkpoints.

    Raises UserError when they are not two of one kind, or when `extras` (prices, watts, years; None where not given)
    come with them.
    """
    kinds = [holds_checkpoints(folder) for folder in folders]
    if not any(kinds):
        return False
    if len(folders) != 2:
        raise UserError(
            f"{' '.join(folders)}: a run of checkpoints is compared with one other; wanted two folders of "
            "`dlemu checkpoint`"
        )
    if not all(kinds):
        one, other = (folders[kinds.index(kind)] for kind in (True, False))
        raise UserError(
            f"{one} is a run of checkpoints and {other} is not: wanted two folders of `dlemu checkpoint`, or two of "
            "training"
        )
    if any(given is not None for given in extras):
        raise UserError(
            "price, watts, years and energy price are shared out over the accelerators that a storage feeds, and these "
            "are runs of checkpoints: leave them out"
        )
    return True


def compare_checkpoint_folders(a: str, b: str) -> CheckpointComparison:
    """Return the run of checkpoints in a folder beside another; raises UserError."""
    return compare_checkpoints(read_checkpoint_run(a), read_checkpoint_run(b))


def compare_checkpoints(a: CheckpointRun, b: CheckpointRun) -> CheckpointComparison:
    """Return A beside B; raises UserError when one only wrote and the other only read."""
    figures = dict(_figures(a.summary)), dict(_figures(b.summary))
    metrics = {name: difference(figures[0][name], figures[1][name]) for name in figures[0] if name in figures[1]}
    if not {"write_slowest_seconds", "read_slowest_seconds"} & metrics.keys():
        raise UserError(
            f"{a.folder} and {b.folder} have no phase in common: {_phases(a.summary)} against {_phases(b.summary)}; "
            "wanted two that both wrote, or both read"
        )
    comparison = CheckpointComparison(
        a=a.folder,
        b=b.folder,
        verdict="",
        metrics=metrics,
        sides=(_side(a), _side(b)),
        issues=tuple(_issues(a, b)),
    )
    return replace(comparison, verdict=_sentence(comparison))


def _figures(summary: CheckpointSummary) -> Iterator[tuple[str, Value]]:
    """Yield what is compared, in the order in which it is shown."""
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
    """Return the mean of a figure over checkpoints, with the half width of its 95 % interval from two on."""
    values = [value(part) for part in phase.checkpoints]
    width = half_width(float(np.std(values, ddof=1)), len(values), CONFIDENCE) if len(values) > 1 else None
    return Value(float(np.mean(values)), width)


def _phases(summary: CheckpointSummary) -> str:
    names = [name for name, phase in (("written", summary.write), ("read", summary.read)) if phase is not None]
    return f"checkpoints {' and '.join(names)}" if names else "no checkpoint was complete"


def _side(run: CheckpointRun) -> ComparedCheckpoints:
    summary = run.summary
    write, read = summary.write, summary.read
    return ComparedCheckpoints(
        name=run.folder,
        title=summary.title,
        verdict=summary.verdict,
        complete=summary.complete,
        started_at=summary.started_at,
        ranks=summary.ranks,
        what=summary.what,
        write_seconds=_seconds(write),
        read_seconds=_seconds(read),
        write_limited_by=write.limited_by.what if write and write.limited_by else None,
        read_limited_by=read.limited_by.what if read and read.limited_by else None,
        hosts=summary.environment.hosts,
        storage=summary.environment.storage,
    )


def _seconds(phase: PhaseSummary | None) -> tuple[float, ...]:
    return tuple(part.slowest_seconds for part in phase.checkpoints) if phase is not None else ()


def _issues(a: CheckpointRun, b: CheckpointRun) -> Iterator[str]:
    """Yield a sentence for whatever makes the difference more than the storage's, and what each side warns of."""
    one, other = a.summary, b.summary
    if one.title != other.title:
        yield f"A is of {one.title} and B of {other.title}: the difference is not the storage's alone"
    told = _ITS_OWN | (_OF_THE_MODEL if one.title != other.title else frozenset())
    for key in (field.name for field in fields(CheckpointFacts) if field.name not in told):
        values = getattr(one.what, key), getattr(other.what, key)
        if values[0] != values[1]:
            yield f"{key} was {values[0]} for A and {values[1]} for B"
    ours, theirs = a.facts.workload.checkpoint, b.facts.workload.checkpoint
    if ours.transfer_size != theirs.transfer_size:
        yield f"checkpoint.transfer_size was {ours.transfer_size} for A and {theirs.transfer_size} for B"
    yield from differing_hosts(one.environment.hosts, other.environment.hosts)
    for name, summary in (("A", one), ("B", other)):
        if not summary.complete:
            yield f"{name}: {summary.verdict}"
        yield from (f"{name}: {issue}" for issue in summary.issues if issue.startswith(_LOUD))


def _sentence(comparison: CheckpointComparison) -> str:
    """Return what it comes to: the time that a checkpoint takes, written and read, and what limited it."""
    a, b = comparison.sides
    said = []
    for verb, key, limits in (
        ("writing", "write_slowest_seconds", (a.write_limited_by, b.write_limited_by)),
        ("reading", "read_slowest_seconds", (a.read_limited_by, b.read_limited_by)),
    ):
        if key in comparison.metrics:
            known = [limit or "not known" for limit in limits]
            by = f"both limited by {known[0]}" if known[0] == known[1] else f"limited by {known[0]} and {known[1]}"
            said.append(f"{verb}: {difference_in_time(comparison.metrics[key], alone='one checkpoint')}, {by}")
    return "; ".join(said)
