"""Reads DLIO's files of rank R: step times from R_output.json, time stamps of blocks from [R_]per_epoch_stats.json.

    0_output.json           {"1": {"load": {"block1": [0.9, 0.1]}, "proc": .., "compute": .., "au": {"block1": 97.5}}}
    0_per_epoch_stats.json  {"1": {"start": "2026-03-01T12:00:00", "end": .., "block1": {"start": .., "end": ..}}}

where "1" is the epoch. `Logs` holds the times of a whole run. DLIO of v0.5 and v1.0 wrote time stamps of rank 0 only,
and `compute` as configured; DLIO 2.x writes time stamps of every rank, and `compute` as measured.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.contrib.mlperf.audit.tolerant import LARGEST_BYTES, mapping, number, read_json, stamp_us, text, value_at
from dlemu.contrib.mlperf.rules.known import Finding, by_rule, first_few
from dlemu.extend import UserError
from dlemu.results.answer_files import open_untrusted

BlockKey = tuple[int, int]  # epoch and block, each from 1
Seconds = NDArray[np.float64]
STAMP_SECONDS = 0.1  # from an event to its time stamp: DLIO logs a line in between (observed: 0.06 s)
_OVERLAP_TOLERANCE_US = 10_000  # between time stamps of one event, as DLIO writes a line to its log between the two
_EPOCH_TOLERANCE_US = 1_000_000  # between time stamps that different parts of DLIO take
LOG = "dlio.log"
_LOG_START_BYTES = 400  # enough of the log to show whether dlemu wrote it
_OUTPUT_FILE = re.compile(r"^(\d{1,9})_output\.json$")
_STATS_FILE = re.compile(r"^(?:(\d{1,9})_)?per_epoch_stats\.json$")
# Keys in these files: of an epoch, of a block, and of a block or checkpoint with time stamps.
_EPOCH = re.compile(r"^\d{1,9}$")
_BLOCK = re.compile(r"^block(\d{1,9})$")
_EPOCH_PART = re.compile(r"^(block|ckpt|save_ckpt|load_ckpt)\d+$")
_BLOCK_VALUES = ("load", "proc", "compute", "au", "throughput")  # of a block, in R_output.json


class Interval(NamedTuple):
    """Time stamps of an epoch, a block or a checkpoint, in microseconds since 1970."""

    start_us: int
    end_us: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Span:
    """Start and end of a block by one rank's clock, in microseconds since 1970."""

    start_us: int
    end_us: int
    earliest_us: int | None
    """Last barrier before the block: no rank began it earlier. None if unknown."""
    latest_us: int | None
    """End of the epoch, which is also a barrier: no rank ended the block later. None if unknown."""
    checkpoint_us: int | None = None
    """Start of the checkpoint after the block; set if DLIO may have counted the block's time up to it."""

    @property
    def seconds(self) -> float:
        return (self.end_us - self.start_us) / 1e6

    @property
    def seconds_to_checkpoint(self) -> float | None:
        """The block's time up to the checkpoint after it; None if `checkpoint_us` is None."""
        return None if self.checkpoint_us is None else (self.checkpoint_us - self.start_us) / 1e6

    @property
    def longest_seconds(self) -> float:
        """Longest possible time of the block on any rank; infinite if the barriers around it are unknown."""
        if self.earliest_us is None or self.latest_us is None:
            return math.inf
        return (self.latest_us - self.earliest_us) / 1e6 + STAMP_SECONDS


def read_spans(path: str, started_us: int | None, findings: list[Finding]) -> dict[BlockKey, Span]:
    """Return the blocks in a file of time stamps; `started_us` is the start of the run.

    If a checkpoint follows the last block of an epoch, DLIO may end that block twice (`_train` in its main.py): after
    its last step, and again just before the checkpoint begins, up to which it then prints its numbers. v0.5 and v1.0
    always do so. Since v2.0 it depends on the version, so a span has both ends.
    """
    epochs = list(epochs_of(read_json(path, findings)))
    findings += out_of_order(epochs, os.path.basename(path))
    barriers_us = [*_barriers_us(epochs), *([] if started_us is None else [started_us])]
    spans = {}
    for epoch, epoch_stats in epochs:
        epoch_end_us = stamp_us(epoch_stats.get("end"))
        for name, stamps in epoch_stats.items():
            block = block_number(name)
            if block is None:
                continue
            interval = _interval(stamps, name)
            if interval is None or interval.end_us <= interval.start_us:
                where = f"{os.path.basename(path)}, epoch {epoch}, {name}"
                findings.append(by_rule("file.unusable", f"{where}: no end after its start"))
                continue
            start_us, end_us, _ = interval
            spans[epoch, block] = Span(
                start_us=start_us,
                end_us=_checkpoint_start(epoch_stats, f"ckpt{block}", end_us) or end_us,
                earliest_us=max((barrier_us for barrier_us in barriers_us if barrier_us <= start_us), default=None),
                latest_us=epoch_end_us if epoch_end_us is not None and epoch_end_us >= end_us else None,
                checkpoint_us=_checkpoint_start(epoch_stats, f"save_ckpt{block}", end_us),
            )
    return spans


def _barriers_us(epochs: Sequence[tuple[int, Mapping[str, Any]]]) -> Iterator[int]:
    """Yield the times of all ranks' barriers: the end of each epoch and of each block."""
    for _, epoch_stats in epochs:
        blocks = [stamps for name, stamps in epoch_stats.items() if block_number(name) is not None]
        ends_us = [stamp_us(mapping(stamps).get("end")) for stamps in (epoch_stats, *blocks)]
        yield from (end_us for end_us in ends_us if end_us is not None)


def _checkpoint_start(epoch_stats: Mapping[str, Any], checkpoint: str, end_us: int) -> int | None:
    """Return the start of a checkpoint in microseconds, if it began after the end of its block; else None."""
    start_us = stamp_us(mapping(epoch_stats.get(checkpoint)).get("start"))
    return start_us if start_us is not None and start_us > end_us else None


def block_number(name: object) -> int | None:
    """Return 3 for `block3`; None for any other name."""
    match = _BLOCK.match(name) if isinstance(name, str) else None
    return int(match[1]) if match else None


def epochs_of(content: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number and content of each epoch in one of DLIO's files."""
    for key, epoch_content in mapping(content).items():
        if isinstance(key, str) and _EPOCH.match(key) and isinstance(epoch_content, Mapping):
            yield int(key), epoch_content


@dataclass(frozen=True, kw_only=True)
class BlockArrays:
    """One rank's step times of one block, in seconds."""

    load: Seconds
    """Time from the request for a batch to its arrival."""
    proc: Seconds
    """Time from the request for a batch to the end of its computation."""
    compute: Seconds
    """Computation time: as configured by v0.5 and v1.0, as measured by DLIO 2.x."""
    printed_au_percent: float | None
    printed_samples_per_second: float | None

    @property
    def steps(self) -> int:
        return len(self.proc)


@dataclass(frozen=True, kw_only=True)
class RankHost:
    """The host of a rank, by the rank's R_output.json."""

    name: str | None
    memory_gib: float | None


@dataclass(frozen=True, kw_only=True)
class Logs:
    """The step times and time stamps in a run's files."""

    arrays: Mapping[int, Mapping[BlockKey, BlockArrays]]
    """Rank -> its step times, for each rank with a readable file."""
    spans: Mapping[int, Mapping[BlockKey, Span]]
    """Rank -> its time stamps of blocks, for each rank that wrote some."""
    measured_compute: bool
    """Whether `compute` is measured, by DLIO 2.x, which writes a file of time stamps for each rank."""
    by_dlemu: bool
    """Whether dlemu wrote the files as a drop-in replacement for DLIO, by the first line of the log."""
    hosts: Mapping[int, RankHost] = field(default_factory=dict)
    """Rank -> its host, for each rank with a readable file."""

    @property
    def lowest_rank_spans(self) -> Mapping[BlockKey, Span]:
        """Time stamps of the lowest rank that wrote some; empty if none did."""
        return self.spans.get(min(self.spans, default=0), {})

    def span(self, rank: int, block: BlockKey) -> Span | None:
        """Return a block's time stamps: the rank's own, or else those of the lowest rank that has some."""
        if block in self.spans.get(rank, {}):
            return self.spans[rank][block]
        return next((spans[block] for _, spans in sorted(self.spans.items()) if block in spans), None)

    def blocks(self) -> list[BlockKey]:
        """Return the blocks of all ranks, in order."""
        return sorted(set[BlockKey]().union(*self.arrays.values(), *self.spans.values()))


def read_logs(folder: str, names: Sequence[str], started: str | None, findings: list[Finding]) -> Logs:
    """Read the step times and time stamps in a folder; `names` are its files, `started` is the start of the run."""
    outputs = {int(match[1]): match[0] for match in map(_OUTPUT_FILE.match, names) if match}
    # v0.5 and v1.0 wrote the file of rank 0 without a number: here it has the key -1.
    stats = {int(match[1] or -1): match[0] for match in map(_STATS_FILE.match, names) if match}
    arrays, hosts = {}, {}
    for rank, name in sorted(outputs.items()):
        content = read_json(os.path.join(folder, name), findings)
        arrays[rank] = _blocks(content, name, findings)
        if isinstance(content, Mapping):
            memory = content.get("host_memory_GB")
            findings += _no_number(name, "host_memory_GB", memory)
            hosts[rank] = RankHost(name=text(content.get("hostname")), memory_gib=number(memory))
    start_us = stamp_us(started)
    spans = {max(0, rank): read_spans(os.path.join(folder, stats[rank]), start_us, findings) for rank in sorted(stats)}
    return Logs(
        arrays={rank: blocks for rank, blocks in arrays.items() if blocks},
        spans={rank: blocks for rank, blocks in spans.items() if blocks},
        measured_compute=any(rank >= 0 for rank in stats),
        by_dlemu=LOG in names and names_dlemu(os.path.join(folder, LOG)),
        hosts=hosts,
    )


def names_dlemu(log: str) -> bool:
    """Return whether dlemu wrote a dlio.log, by the log's first line."""
    try:
        with open(open_untrusted(log, LARGEST_BYTES), "rb") as lines:
            return b"dlemu" in lines.read(_LOG_START_BYTES).partition(b"\n")[0]
    except (OSError, UserError):
        return False


def _blocks(content: object, file: str, findings: list[Finding]) -> dict[BlockKey, BlockArrays]:
    blocks = {}
    for epoch, epoch_output in epochs_of(content):
        for name in mapping(epoch_output.get("proc")):
            block = block_number(name)
            if block is not None:
                arrays = _arrays(epoch_output, name, f"{file}, epoch {epoch}, {name}", findings)
                if arrays:
                    blocks[epoch, block] = arrays
    return blocks


def _arrays(epoch_output: Mapping[str, Any], block: str, where: str, findings: list[Finding]) -> BlockArrays | None:
    values = {key: value_at(epoch_output, f"{key}.{block}") for key in _BLOCK_VALUES}
    load, proc, compute = _seconds(values["load"]), _seconds(values["proc"]), _seconds(values["compute"])
    if load is None or proc is None or compute is None:
        arrays = {"load": load, "proc": proc, "compute": compute}
        unusable = ", ".join(key for key, seconds in arrays.items() if seconds is None)
        findings.append(by_rule("file.unusable", f"{where}: {unusable} is not a list of seconds"))
        return None
    if not len(load) == len(proc) == len(compute):
        lengths = f"load {len(load)}, proc {len(proc)}, compute {len(compute)}"
        findings.append(by_rule("file.unusable", f"{where}: lists of unequal length ({lengths})"))
        return None
    au, rate = values["au"], values["throughput"]
    findings += [*_no_number(where, "au", au), *_no_number(where, "throughput", rate)]
    return BlockArrays(
        load=load, proc=proc, compute=compute, printed_au_percent=number(au), printed_samples_per_second=number(rate)
    )


def _no_number(where: str, key: str, value: object) -> Iterator[Finding]:
    """Report a value that is no number; NaN, which DLIO writes for a block that was cut short, is a number."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        yield by_rule("file.unusable", f"{where}: {key} is {repr(value)[:60]}")


def _seconds(value: object) -> Seconds | None:
    """Return a list of finite, non-negative seconds as an array; None for any other value."""
    if not isinstance(value, list) or not value:
        return None
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        return None
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        return None
    seconds = array.astype(np.float64)
    return seconds if bool(np.isfinite(seconds).all()) and float(seconds.min()) >= 0 else None


def out_of_order(epochs: Sequence[tuple[int, Mapping[str, Any]]], file: str) -> Iterator[Finding]:
    """Yield a single finding if epochs, blocks or checkpoints in a file of time stamps are not in order."""
    intervals = [_interval(stats, f"epoch {epoch}") for epoch, stats in sorted(epochs, key=lambda epoch: epoch[0])]
    problems = list(_overlaps([interval for interval in intervals if interval]))
    for epoch, stats in epochs:
        parts: list[tuple[str, Interval]] = []  # (kind, interval) of each block and checkpoint
        for name, stamps in stats.items():
            match = _EPOCH_PART.match(str(name))
            interval = _interval(stamps, str(name))
            if match and interval:
                parts.append((match[1], interval))
        for kinds in (("block",), ("ckpt", "save_ckpt", "load_ckpt")):
            problems += _overlaps(sorted(interval for kind, interval in parts if kind in kinds))
        whole_epoch = _interval(stats, f"epoch {epoch}")
        if whole_epoch:
            earliest_us = whole_epoch.start_us - _EPOCH_TOLERANCE_US
            latest_us = whole_epoch.end_us + _EPOCH_TOLERANCE_US
            outside = [part for _, part in parts if part.start_us < earliest_us or part.end_us > latest_us]
            problems += [f"{part.name} is not within epoch {epoch}" for part in outside]
    if problems:
        yield by_rule("time.order", f"{file}: {first_few(problems)}")


def _interval(stamps: object, name: str) -> Interval | None:
    start_us, end_us = stamp_us(mapping(stamps).get("start")), stamp_us(mapping(stamps).get("end"))
    return None if start_us is None or end_us is None else Interval(start_us, end_us, name)


def _overlaps(intervals: Sequence[Interval]) -> Iterator[str]:
    """Yield phrases on intervals that end before they begin, or begin before the previous one has ended."""
    for interval in intervals:
        if interval.end_us < interval.start_us - _OVERLAP_TOLERANCE_US:
            yield f"{interval.name} ends before it begins"
    for previous, interval in pairwise(intervals):
        overlap_us = previous.end_us - interval.start_us
        if overlap_us > _OVERLAP_TOLERANCE_US:
            yield f"{interval.name} begins {overlap_us / 1e6:.3f} s before {previous.name} ends"
