"""Reads one call of the checkpointing benchmark from DLIO's files, and finds contradictions between them.

The summary has rank 0's figures: mean and population standard deviation of its saves and loads. The text of the rules
requires the slowest rank's (v2.0, 2.2.3: the longest duration, the lowest throughput), so the audit reports both.
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
from dlemu.contrib.mlperf.audit.call_records import CallRecords, read_call_records
from dlemu.contrib.mlperf.audit.step_files import epochs_of, out_of_order
from dlemu.contrib.mlperf.audit.tolerant import integer, mapping, number, read_json, same_sum, stamp_us
from dlemu.contrib.mlperf.rules.known import Finding, Severity, by_rule, first_few, unapplied
from dlemu.contrib.mlperf.rules.training import GIB
from dlemu.extend import UserError, checkpoint_plan

Kind = Literal["save", "load"]
KINDS: tuple[Kind, Kind] = ("save", "load")
_TRANSFER = re.compile(r"^(save|load)_ckpt(\d+)$")
_STATS = re.compile(r"^(\d+)_per_epoch_stats\.json$")
_STAMP_TOLERANCE_SECONDS = 0.01  # between a duration and its time stamps
_SUMMARY_TOLERANCE_US = 1_000_000  # how far a checkpoint may reach beyond the summary's start and end
_MIN_SLOWER = 0.01  # relative; the slowest rank is reported if it took this much longer than rank 0


@dataclass(frozen=True)
class Transfer:
    """One save or load of a checkpoint by one rank."""

    kind: Kind
    seconds: float
    gib_per_second: float | None
    stamped_seconds: float | None
    """Duration by the time stamps."""
    start_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointCall(CallRecords):
    """One call of the benchmark, which saves or loads checkpoints, or both."""

    transfers: Mapping[int, tuple[Transfer, ...]] = field(default_factory=dict)
    """Rank -> its saves and loads in order of time, for each rank with times."""

    @property
    def metric(self) -> Mapping[str, Any]:
        return mapping(self.summary.get("metric"))

    @property
    def ranks(self) -> int | None:
        return integer(self.summary.get("num_accelerators")) or integer(self.metadata.get("num_processes"))

    @property
    def size_gib(self) -> float | None:
        return number(self.metric.get("checkpoint_size_GB"))

    @property
    def rank_0_transfers(self) -> tuple[Transfer, ...]:
        """Saves and loads of rank 0, or else of the lowest rank with times; empty without times."""
        return self.transfers[min(self.transfers)] if self.transfers else ()

    def checkpoints(self, kind: Kind) -> int:
        """Return the number of checkpoints that were saved, or loaded."""
        return sum(transfer.kind == kind for transfer in self.rank_0_transfers)

    @cached_property
    def plan(self) -> checkpoint_plan.CheckpointPlan | None:
        """Tensors and files of a checkpoint by the call's settings; None if these are incomplete or invalid."""
        if self.ranks is None or not self.section("model"):
            return None
        mode = self.section("checkpoint").get("mode")
        try:
            model = msgspec.convert(self.section("model"), Model, strict=False)
            settings = Checkpoint(mode="subset" if mode == "subset" else "default")
            return checkpoint_plan.plan_checkpoint(model, settings, self.ranks)
        except (msgspec.ValidationError, UserError):
            return None


def read_checkpoint_call(folder: str) -> CheckpointCall:
    """Read the folder of a call; `broken` has a finding for each file that can't be read."""
    records = read_call_records(folder)
    transfers = {}
    broken: list[Finding] = []
    stats_files = {int(match[1]): match[0] for match in map(_STATS.match, records.files) if match}
    for rank, name in sorted(stats_files.items()):
        epochs = list(epochs_of(read_json(os.path.join(folder, name), broken)))
        broken += out_of_order(epochs, name)
        rank_transfers = tuple(transfer for _, epoch in epochs for transfer in _transfers(epoch))
        if rank_transfers:
            transfers[rank] = rank_transfers
    return CheckpointCall(**vars(records) | {"transfers": transfers, "broken": (*records.broken, *broken)})


def _transfers(epoch: Mapping[str, Any]) -> Iterator[Transfer]:
    """Yield a save of 2.5 s for {"save_ckpt1": {"start": .., "end": .., "duration": 2.5, "throughput": 42.1}}."""
    for name, content in epoch.items():
        match = _TRANSFER.match(str(name))
        stats = mapping(content)
        seconds = number(stats.get("duration"))
        if match and seconds is not None:
            kind: Kind = "save" if match[1] == "save" else "load"
            start_us, end_us = stamp_us(stats.get("start")), stamp_us(stats.get("end"))
            stamped = None if start_us is None or end_us is None else (end_us - start_us) / 1e6
            yield Transfer(kind, seconds, number(stats.get("throughput")), stamped, start_us)


def checkpoint_numbers(call: CheckpointCall) -> Iterator[Finding]:
    """Report contradictions between the files of a call, and a slowest rank that took longer than rank 0."""
    yield from call.broken
    if call.transfers and call.metric:
        problems = [*_differences(call), *_outside_summary(call)]
        for rank, transfers in call.transfers.items():
            problems += [f"rank {rank}: {seen}" for seen in _stamp_differences(transfers)]
        if problems:
            yield by_rule("checkpoint.differs", first_few(problems))
    else:
        facts = {"checkpoints of any rank": call.transfers or None, "summary": call.metric or None}
        yield from unapplied("checkpoint.differs", facts)
    yield from _size(call)
    yield from _slowest(call)
    yield from _staggered(call)


def _size(call: CheckpointCall) -> Iterator[Finding]:
    if call.plan is None or call.size_gib is None:
        facts = {"settings of the model": call.plan, "size in the summary": call.size_gib}
        yield from unapplied("checkpoint.size", facts)
        return
    planned_gib = call.plan.tensor_bytes() / GIB
    if not same_sum(call.size_gib, planned_gib):
        wanted = f"{planned_gib:.6f}: the size of this model's tensors with so many ranks"
        yield by_rule("checkpoint.size", f"checkpoint_size_GB is {call.size_gib:.6f}", wanted)


def _slowest(call: CheckpointCall) -> Iterator[Finding]:
    """Report saves or loads in which the slowest rank, whose figures the rules require, took longer than rank 0."""
    if call.ranks is None or len(call.transfers) < call.ranks:
        if call.transfers:
            yield from unapplied("checkpoint.slowest", {"times of every rank": None})
        return
    for kind in KINDS:
        rounds = rounds_of(call, kind)
        if not rounds:
            continue
        rank_0 = fmean(seconds[0] for seconds in rounds)
        slowest = fmean(max(seconds) for seconds in rounds)
        if slowest > rank_0 * (1 + _MIN_SLOWER):
            seen = f"a {kind} took rank 0 {rank_0:.2f} s, the slowest rank {slowest:.2f} s"
            if call.size_gib:
                seen += f", {fmean(call.size_gib / max(seconds) for seconds in rounds):.3f} GiB/s"
            yield by_rule("checkpoint.slowest", f"{seen} (means of {len(rounds)})")


def _staggered(call: CheckpointCall) -> Iterator[Finding]:
    """All ranks save, or load, a checkpoint at the same time: none begins after another has ended."""
    for kind in KINDS:
        by_rank = [[each for each in transfers if each.kind == kind] for transfers in call.transfers.values()]
        for index, transfers in enumerate(zip(*by_rank, strict=False), 1):
            starts_us = [each.start_us for each in transfers if each.start_us is not None]
            ends_us = [each.start_us + 1e6 * each.seconds for each in transfers if each.start_us is not None]
            gap_us = max(starts_us) - min(ends_us) if starts_us else 0
            if gap_us > 1e6 * _STAMP_TOLERANCE_SECONDS:
                severity: Severity = "error" if call.hosts == 1 else "warning"  # the clocks of several hosts may differ
                seen = f"{kind} {index}: a rank began {gap_us / 1e6:.1f} s after another had ended"
                yield by_rule("checkpoint.staggered", seen, severity=severity)
                return


def rounds_of(call: CheckpointCall, kind: Kind) -> list[list[float]]:
    """Return the seconds of all ranks for each checkpoint; empty if ranks have different numbers of checkpoints."""
    by_rank = [
        [transfer.seconds for transfer in transfers if transfer.kind == kind and transfer.seconds > 0]
        for _, transfers in sorted(call.transfers.items())
    ]
    is_complete = len(set(map(len, by_rank))) == 1
    return [list(seconds) for seconds in zip(*by_rank, strict=True)] if is_complete else []


def _differences(call: CheckpointCall) -> Iterator[str]:
    """Yield phrases on figures of the summary that differ from those of rank 0's checkpoints."""
    for index, transfer in enumerate(call.rank_0_transfers, 1):
        if call.size_gib and transfer.gib_per_second is not None:
            moved = transfer.gib_per_second * transfer.seconds
            if not same_sum(moved, call.size_gib):
                yield f"{transfer.kind} {index} moved {moved:.4f} GB, checkpoint_size_GB is {call.size_gib:.4f}"
    for kind in KINDS:
        transfers = [transfer for transfer in call.rank_0_transfers if transfer.kind == kind]
        seconds = [transfer.seconds for transfer in transfers]
        rates = [transfer.gib_per_second for transfer in transfers if transfer.gib_per_second is not None]
        for values, name, unit in ((seconds, "duration", "seconds"), (rates, "io", "GB_per_second")):
            sums = {"mean": fmean(values), "stdev": pstdev(values)} if values else {}
            for sum_name, recomputed in sums.items():
                key = f"{kind}_checkpoint_{name}_{sum_name}_{unit}"
                printed = number(call.metric.get(key))
                if printed is None or not same_sum(printed, recomputed):
                    yield f"{key} is {'missing' if printed is None else printed}; recomputed {recomputed:.6g}"


def _stamp_differences(transfers: Sequence[Transfer]) -> Iterator[str]:
    for index, transfer in enumerate(transfers, 1):
        stamped, seconds = transfer.stamped_seconds, transfer.seconds
        if stamped is not None and abs(stamped - seconds) > _STAMP_TOLERANCE_SECONDS:
            yield f"{transfer.kind} {index} took {seconds:g} s, its time stamps give {stamped:g} s"


def _outside_summary(call: CheckpointCall) -> Iterator[str]:
    """Yield phrases on checkpoints of rank 0, which writes the summary, that are not within the summary's times."""
    run_start_us, run_end_us = stamp_us(call.summary.get("start")), stamp_us(call.summary.get("end"))
    for transfer in call.transfers.get(0, ()):
        if transfer.start_us is None:
            continue
        end_us = transfer.start_us + transfer.seconds * 1e6
        if run_start_us is not None and transfer.start_us < run_start_us - _SUMMARY_TOLERANCE_US:
            yield f"a {transfer.kind} began before the summary's start"
        if run_end_us is not None and end_us > run_end_us + _SUMMARY_TOLERANCE_US:
            yield f"a {transfer.kind} ended after the summary's end"
