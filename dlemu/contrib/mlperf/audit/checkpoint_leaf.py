"""Reads one checkpoint run from DLIO's files: its settings, each rank's times, and contradictions between them.

The summary has figures of rank 0 only: mean and population standard deviation of its saves and loads. The text of the
rules requires the slowest rank's (v2.0, 2.2.3: the longest duration, the lowest throughput), so both are reported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, pstdev
from typing import Any, Literal

import msgspec

from dlemu.config.schema import Checkpoint, Model
from dlemu.contrib.mlperf.audit.papers import Papers, read_papers
from dlemu.contrib.mlperf.audit.step_files import epochs_of, out_of_order
from dlemu.contrib.mlperf.audit.tolerant import integer, mapping, number, read_json, same_sum, stamp_us
from dlemu.contrib.mlperf.rules.known import Finding, Severity, by_rule, unapplied
from dlemu.contrib.mlperf.rules.training import GIB
from dlemu.extend import UserError, checkpoint_plan

Kind = Literal["save", "load"]
KINDS: tuple[Kind, Kind] = ("save", "load")
_PART = re.compile(r"^(save|load)_ckpt(\d+)$")
_STATS = re.compile(r"^(\d+)_per_epoch_stats\.json$")
_STAMP_TOLERANCE_SECONDS = 0.01
"""Between a duration and its time stamps."""
_SUMMARY_TOLERANCE_US = 1_000_000
"""A checkpoint may begin this long before the summary's start, or end this long after its end."""
_MIN_SLOWER = 0.01
"""The slowest rank is reported from this relative difference to rank 0 on."""


@dataclass(frozen=True)
class Part:
    """One save or load of a checkpoint by one rank."""

    kind: Kind
    seconds: float
    gib_per_second: float | None
    stamped_seconds: float | None
    """Duration by its time stamps."""
    start_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointLeaf(Papers):
    """One run of the benchmark, which writes and/or reads checkpoints."""

    parts: Mapping[int, tuple[Part, ...]] = field(default_factory=dict)
    """Rank -> its checkpoints in order of time, for each rank that kept their times."""

    @property
    def metric(self) -> Mapping[str, Any]:
        """Figures of the summary."""
        return mapping(self.summary.get("metric"))

    @property
    def ranks(self) -> int | None:
        """Number of ranks."""
        return integer(self.summary.get("num_accelerators")) or integer(self.metadata.get("num_processes"))

    def checkpoints(self, kind: Kind) -> int:
        """Return how many checkpoints rank 0 (or else the lowest rank with times) saved or loaded."""
        first = self.parts[min(self.parts)] if self.parts else ()
        return sum(part.kind == kind for part in first)

    @cached_property
    def plan(self) -> checkpoint_plan.CheckpointPlan | None:
        """Tensors and files of one checkpoint, by the run's settings; None where these are incomplete."""
        given, saves = self.section("model"), self.section("checkpoint")
        if self.ranks is None or not given:
            return None
        try:
            model = msgspec.convert(given, Model, strict=False)
            settings = Checkpoint(mode="subset" if saves.get("mode") == "subset" else "default")
            return checkpoint_plan.plan_checkpoint(model, settings, self.ranks)
        except (msgspec.ValidationError, UserError):
            return None


def read_checkpoint_leaf(folder: str) -> CheckpointLeaf:
    """Read the folder of a run; what can't be read becomes one of its findings (`broken`)."""
    papers, parts = read_papers(folder), {}
    broken: list[Finding] = []
    ranks = {int(match[1]): match[0] for match in map(_STATS.match, papers.files) if match}
    for rank, name in sorted(ranks.items()):
        epochs = list(epochs_of(read_json(os.path.join(folder, name), broken)))
        broken += out_of_order(epochs, name)
        parts[rank] = _parts(epochs)
    kept = {rank: own for rank, own in parts.items() if own}
    return CheckpointLeaf(**vars(papers) | {"parts": kept, "broken": (*papers.broken, *broken)})


def _parts(epochs: Sequence[tuple[int, Mapping[str, Any]]]) -> tuple[Part, ...]:
    parts = []
    for _, epoch in epochs:
        for name, value in epoch.items():
            match, given = _PART.match(str(name)), mapping(value)
            seconds = number(given.get("duration"))
            if match and seconds is not None:
                kind: Kind = "save" if match[1] == "save" else "load"
                begun, ended = stamp_us(given.get("start")), stamp_us(given.get("end"))
                stamped = None if begun is None or ended is None else (ended - begun) / 1e6
                parts.append(Part(kind, seconds, number(given.get("throughput")), stamped, begun))
    return tuple(parts)


def checkpoint_numbers(leaf: CheckpointLeaf) -> Iterator[Finding]:
    """Yield contradictions between the files of a run, and the times of its slowest rank."""
    yield from leaf.broken
    first = leaf.parts[min(leaf.parts)] if leaf.parts else ()
    if first and leaf.metric:
        problems = [*_differences(first, leaf.metric), *_outside_summary(leaf)]
        for rank, own in leaf.parts.items():
            problems += [f"rank {rank}: {seen}" for seen in _stamp_differences(own)]
        if problems:
            yield by_rule("checkpoint.differs", "; ".join(problems[:3]))
    else:
        facts = {"checkpoints of any rank": first or None, "summary": leaf.metric or None}
        yield from unapplied("checkpoint.differs", facts)
    yield from _size(leaf)
    yield from _slowest(leaf)
    yield from _staggered(leaf)


def _size(leaf: CheckpointLeaf) -> Iterator[Finding]:
    printed = number(leaf.metric.get("checkpoint_size_GB"))
    if leaf.plan is None or printed is None:
        yield from unapplied("checkpoint.size", {"settings of the model": leaf.plan, "size in the summary": printed})
        return
    size = leaf.plan.tensor_bytes() / GIB
    if not same_sum(printed, size):
        wanted = f"{size:.6f}: the size of this model's tensors with so many ranks"
        yield by_rule("checkpoint.size", f"checkpoint_size_GB is {printed:.6f}", wanted)


def _slowest(leaf: CheckpointLeaf) -> Iterator[Finding]:
    """Yield a finding where the slowest rank, which the rules' text requires, took longer than rank 0."""
    if leaf.ranks is None or len(leaf.parts) < leaf.ranks:
        if leaf.parts:
            yield from unapplied("checkpoint.slowest", {"times of every rank": None})
        return
    for kind in KINDS:
        rounds = rounds_of(leaf, kind)
        if not rounds:
            continue
        first, slowest = fmean(seconds[0] for seconds in rounds), fmean(max(seconds) for seconds in rounds)
        if slowest > first * (1 + _MIN_SLOWER):
            size = number(leaf.metric.get("checkpoint_size_GB"))
            rate = f", {fmean(size / max(seconds) for seconds in rounds):.3f} GiB/s" if size else ""
            means = f"a {kind} took rank 0 {first:.2f} s, the slowest rank {slowest:.2f} s{rate}"
            yield by_rule("checkpoint.slowest", f"{means} (means of {len(rounds)})")


def _staggered(leaf: CheckpointLeaf) -> Iterator[Finding]:
    """All ranks save, or load, a checkpoint at the same time: none begins after another has ended."""
    for kind in KINDS:
        by_rank = [[part for part in own if part.kind == kind] for own in leaf.parts.values()]
        for index, parts in enumerate(zip(*by_rank, strict=False), 1):
            timed = [(part.start_us, part.start_us + 1e6 * part.seconds) for part in parts if part.start_us is not None]
            late_us = max(start for start, _ in timed) - min(end for _, end in timed) if timed else 0
            if late_us > 1e6 * _STAMP_TOLERANCE_SECONDS:
                # the clocks of several hosts may differ
                severity: Severity = "error" if leaf.hosts == 1 else "warning"
                seen = f"{kind} {index}: a rank began {late_us / 1e6:.1f} s after another had ended"
                yield by_rule("checkpoint.staggered", seen, severity=severity)
                return


def rounds_of(leaf: CheckpointLeaf, kind: Kind) -> list[list[float]]:
    """Return the seconds of all ranks for each checkpoint; empty where ranks have different numbers of checkpoints."""
    by_rank = [
        [part.seconds for part in own if part.kind == kind and part.seconds > 0]
        for _, own in sorted(leaf.parts.items())
    ]
    return [list(each) for each in zip(*by_rank, strict=False)] if len({len(own) for own in by_rank}) == 1 else []


def _differences(parts: Sequence[Part], metric: Mapping[str, Any]) -> Iterator[str]:
    """Yield how the summary's figures differ from those of rank 0's checkpoints."""
    size = number(metric.get("checkpoint_size_GB"))
    for index, part in enumerate(parts, 1):
        if size and part.gib_per_second is not None and not same_sum(part.gib_per_second * part.seconds, size):
            moved = part.gib_per_second * part.seconds
            yield f"{part.kind} {index} moved {moved:.4f} GB, checkpoint_size_GB is {size:.4f}"
    for kind in KINDS:
        seconds = [part.seconds for part in parts if part.kind == kind]
        rates = [part.gib_per_second for part in parts if part.kind == kind and part.gib_per_second is not None]
        for values, name, unit in ((seconds, "duration", "seconds"), (rates, "io", "GB_per_second")):
            sums = {"mean": fmean(values), "stdev": pstdev(values)} if values else {}
            for sum_of, recomputed in sums.items():
                key = f"{kind}_checkpoint_{name}_{sum_of}_{unit}"
                printed = number(metric.get(key))
                if printed is None or not same_sum(printed, recomputed):
                    yield f"{key} is {printed if printed is not None else 'missing'}; recomputed {recomputed:.6g}"


def _stamp_differences(parts: Sequence[Part]) -> Iterator[str]:
    for index, part in enumerate(parts, 1):
        if part.stamped_seconds is not None and abs(part.stamped_seconds - part.seconds) > _STAMP_TOLERANCE_SECONDS:
            yield f"{part.kind} {index} took {part.seconds:g} s, its time stamps give {part.stamped_seconds:g} s"


def _outside_summary(leaf: CheckpointLeaf) -> Iterator[str]:
    """Yield which checkpoints of rank 0, which writes the summary, are not between the summary's start and end."""
    begun, ended = stamp_us(leaf.summary.get("start")), stamp_us(leaf.summary.get("end"))
    for part in leaf.parts.get(0, ()):
        start = part.start_us
        if start is not None and begun is not None and start < begun - _SUMMARY_TOLERANCE_US:
            yield f"a {part.kind} began before the summary's start"
        if start is not None and ended is not None and start + part.seconds * 1e6 > ended + _SUMMARY_TOLERANCE_US:
            yield f"a {part.kind} ended after the summary's end"
