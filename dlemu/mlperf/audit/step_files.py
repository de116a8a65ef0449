"""What the ranks kept of their steps and blocks: R_output.json (arrays) and [R_]per_epoch_stats.json (stamps).

`Logs` is all of a run. v0.5 and v1.0 kept time stamps of rank 0 alone, and the configured time of each step as
`compute`; DLIO 2.x keeps stamps of every rank, and the measured time.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datagen.errors import UserError
from dlemu.mlperf.audit.time_order import out_of_order
from dlemu.mlperf.audit.tolerant import LARGEST_BYTES, mapping, number, read_json, stamp_us, text
from dlemu.results.finding import Finding
from dlemu.results.untrusted_files import open_untrusted

BlockKey = tuple[int, int]
"""Epoch and block, each from 1."""
STAMP_SECONDS = 0.1
"""How far a stamp lies from the moment it is of, at most: DLIO writes a line to its log in between."""

_BLOCK = re.compile(r"^block(\d{1,9})$")
_NUMBER = re.compile(r"^\d{1,9}$")
Seconds = NDArray[np.float64]

_OUTPUT = re.compile(r"^(\d{1,9})_output\.json$")
_STATS = re.compile(r"^(?:(\d{1,9})_)?per_epoch_stats\.json$")
_LOG, _LOG_START = "dlio.log", 400
"""The log, and how many bytes at its start show who wrote it."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """When a block began and ended by one rank's clock."""

    start_us: int
    end_us: int
    window_us: int | None
    """When all ranks had last met before it: no rank began the block earlier."""
    closed_us: int | None
    """When all ranks had met after it: no rank ended the block later."""
    checkpoint_us: int | None = None
    """When the checkpoint behind it began, where DLIO may have taken the block's time up to there."""

    @property
    def seconds(self) -> float:
        """The block's time."""
        return (self.end_us - self.start_us) / 1e6

    @property
    def seconds_to_checkpoint(self) -> float | None:
        """The block's time up to the checkpoint behind it; None when there is none or it makes no difference."""
        return None if self.checkpoint_us is None else (self.checkpoint_us - self.start_us) / 1e6

    @property
    def longest_seconds(self) -> float:
        """The most that the block can have taken on any rank; infinite when it is not known when all ranks met."""
        if self.window_us is None or self.closed_us is None:
            return math.inf
        return (self.closed_us - self.window_us) / 1e6 + STAMP_SECONDS


def read_spans(path: str, started_us: int | None, findings: list[Finding]) -> dict[BlockKey, Span]:
    """Return the blocks that a file of stamps reports; `started_us` is when the run began.

    DLIO ends the last block of an epoch with a checkpoint behind it twice, and prints what the second time gave: just
    before the checkpoint begins (`_train` in its main.py, v0.5 to v2.0). v0.5 and v1.0 always do; since v2.0 it
    depends on the version, so both ends are kept.
    """
    epochs = list(epochs_of(read_json(path, findings)))
    findings += out_of_order(epochs, os.path.basename(path))
    met = [started_us, *(stamp_us(part.get("end")) for _, epoch_stats in epochs for part in _meetings(epoch_stats))]
    known = [moment for moment in met if moment is not None]
    spans = {}
    for epoch, epoch_stats in epochs:
        closed = stamp_us(epoch_stats.get("end"))
        for name, stamps in epoch_stats.items():
            number = block_number(name)
            if number is None:
                continue
            start, end = (stamp_us(mapping(stamps).get(key)) for key in ("start", "end"))
            if start is None or end is None or end <= start:
                where = f"{os.path.basename(path)}, epoch {epoch}, {name}"
                findings.append(unusable(f"{where}: no end after its start"))
                continue
            spans[epoch, number] = Span(
                start_us=start,
                end_us=_later(epoch_stats, f"ckpt{number}", end) or end,
                window_us=max((moment for moment in known if moment <= start), default=None),
                closed_us=closed if closed is not None and closed >= end else None,
                checkpoint_us=_later(epoch_stats, f"save_ckpt{number}", end),
            )
    return spans


def _meetings(epoch_stats: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what ends with a meeting of all ranks: the epoch, and each of its blocks."""
    yield epoch_stats
    yield from (mapping(part) for name, part in epoch_stats.items() if block_number(name) is not None)


def _later(epoch_stats: Mapping[str, Any], checkpoint: str, end_us: int) -> int | None:
    """Return when a block's checkpoint began, if that was after the block's first end."""
    began = stamp_us(mapping(epoch_stats.get(checkpoint)).get("start"))
    return began if began is not None and began > end_us else None


def block_number(name: object) -> int | None:
    """Return 3 of `block3`, None for any other name."""
    match = _BLOCK.match(name) if isinstance(name, str) else None
    return int(match[1]) if match else None


def epochs_of(content: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield number and content of each epoch in one of DLIO's files."""
    for key, epoch_content in mapping(content).items():
        if isinstance(key, str) and _NUMBER.match(key) and isinstance(epoch_content, Mapping):
            yield int(key), epoch_content


def unusable(seen: str) -> Finding:
    """Return the finding of a block that can't be used."""
    fix = "copy the file from the run again; the block is left out"
    return Finding("error", "file.unusable", seen, "what DLIO writes: finite seconds, one per step", fix)


@dataclass(frozen=True, kw_only=True)
class BlockArrays:
    """What one rank kept of one block: seconds of each step."""

    load: Seconds
    """From requesting the batch to having it."""
    proc: Seconds
    """From requesting the batch to the end of its computation."""
    compute: Seconds
    """As the file has it: the configured sleep in v0.5 and v1.0, the measured one since 2.0."""
    printed_au_percent: float | None
    printed_samples_per_second: float | None

    @property
    def steps(self) -> int:
        """Steps of the block."""
        return len(self.proc)


@dataclass(frozen=True, kw_only=True)
class RankHost:
    """What a rank's file says of the host that it ran on."""

    name: str | None
    memory_gib: float | None


@dataclass(frozen=True, kw_only=True)
class Logs:
    """All that a run kept of its steps and blocks."""

    arrays: Mapping[int, Mapping[BlockKey, BlockArrays]]
    """Of each rank whose file could be read."""
    spans: Mapping[int, Mapping[BlockKey, Span]]
    """Each block by the time stamps of each rank that kept them."""
    measured_compute: bool
    """Whether `compute` is measured: DLIO 2.x, whose stamps are in one file for each rank."""
    by_dlemu: bool
    """Whether dlemu wrote these files as a drop-in replacement for DLIO, as the first line of its log says."""
    hosts: Mapping[int, RankHost] = field(default_factory=dict)
    """Of each rank whose file could be read."""

    def span(self, rank: int, block: BlockKey) -> Span | None:
        """Return a block's time stamps: the rank's own, else those of the lowest rank that has them."""
        for source in (rank, *sorted(self.spans)):
            span = self.spans.get(source, {}).get(block)
            if span is not None:
                return span
        return None

    def blocks(self) -> list[BlockKey]:
        """Return the blocks that any file reports, in order."""
        sources = [*self.arrays.values(), *self.spans.values()]
        return sorted({block for source in sources for block in source})


def read_logs(folder: str, names: list[str], started: str | None, findings: list[Finding]) -> Logs:
    """Return what the files of a folder, whose names are given, record of steps and blocks.

    `started` is the time stamp of the run's start.
    """
    outputs = {int(match[1]): match[0] for match in map(_OUTPUT.match, names) if match}
    stats = {int(match[1] or -1): match[0] for match in map(_STATS.match, names) if match}
    arrays, hosts = {}, {}
    for rank, name in sorted(outputs.items()):
        content = read_json(os.path.join(folder, name), findings)
        arrays[rank] = _blocks(content, name, findings)
        if isinstance(content, Mapping):
            hosts[rank] = RankHost(name=text(content.get("hostname")), memory_gib=number(content.get("host_memory_GB")))
    start_us = stamp_us(started)
    spans = {max(0, rank): read_spans(os.path.join(folder, stats[rank]), start_us, findings) for rank in sorted(stats)}
    return Logs(
        arrays={rank: blocks for rank, blocks in arrays.items() if blocks},
        spans={rank: blocks for rank, blocks in spans.items() if blocks},
        measured_compute=any(rank >= 0 for rank in stats),
        by_dlemu=_LOG in names and names_dlemu(os.path.join(folder, _LOG)),
        hosts=hosts,
    )


def names_dlemu(log: str) -> bool:
    """Return whether dlemu wrote a dlio.log, by its first line."""
    try:
        with open(open_untrusted(log, LARGEST_BYTES), "rb") as lines:
            return b"dlemu" in lines.read(_LOG_START).partition(b"\n")[0]
    except (OSError, UserError):
        return False


def _blocks(content: object, name_of_file: str, findings: list[Finding]) -> dict[BlockKey, BlockArrays]:
    blocks = {}
    for epoch, epoch_output in epochs_of(content):
        for name in mapping(epoch_output.get("proc")):
            number = block_number(name)
            if number is not None:
                arrays = _arrays(epoch_output, name, f"{name_of_file}, epoch {epoch}, {name}", findings)
                if arrays:
                    blocks[epoch, number] = arrays
    return blocks


def _arrays(epoch_output: Mapping[str, Any], name: str, where: str, findings: list[Finding]) -> BlockArrays | None:
    lists = {key: _seconds(mapping(epoch_output.get(key)).get(name)) for key in ("load", "proc", "compute")}
    missing = [key for key, values in lists.items() if values is None]
    load, proc, compute = lists.values()
    if load is None or proc is None or compute is None:
        findings.append(unusable(f"{where}: {', '.join(missing)} is not a list of seconds"))
        return None
    if not len(load) == len(proc) == len(compute):
        lengths = ", ".join(f"{key} {len(values)}" for key, values in lists.items() if values is not None)
        findings.append(unusable(f"{where}: lists of unequal length ({lengths})"))
        return None
    return BlockArrays(
        load=load,
        proc=proc,
        compute=compute,
        printed_au_percent=number(mapping(epoch_output.get("au")).get(name)),
        printed_samples_per_second=number(mapping(epoch_output.get("throughput")).get(name)),
    )


def _seconds(value: object) -> Seconds | None:
    """Return an array of finite seconds, or None when the value is anything else."""
    if not isinstance(value, list) or not value:
        return None
    try:
        found = np.array(value)
    except (ValueError, OverflowError):
        return None
    if found.ndim != 1 or found.dtype.kind not in "iuf":
        return None
    seconds = found.astype(np.float64)
    return seconds if bool(np.isfinite(seconds).all()) and float(seconds.min()) >= 0 else None
