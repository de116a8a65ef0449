"""The per-step arrays and time stamps that the ranks kept: R_output.json and [R_]per_epoch_stats.json."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.mlperf.audit.spans import BlockKey, Span, block_number, epochs_of, read_spans, unusable
from dlemu.mlperf.audit.tolerant import mapping, number, read_json, stamp_us
from dlemu.mlperf.finding import Finding

Seconds = NDArray[np.float64]

_OUTPUT = re.compile(r"^(\d{1,9})_output\.json$")
_STATS = re.compile(r"^(?:(\d{1,9})_)?per_epoch_stats\.json$")
_LOG, _LOG_START = "dlio.log", 400
"""The log, and how many bytes at its start tell who wrote it."""


@dataclass(frozen=True, kw_only=True)
class BlockArrays:
    """What one rank kept of one block: seconds of each step."""

    load: Seconds
    """From asking for the batch to having it."""
    proc: Seconds
    """From asking for the batch to the end of its computation."""
    compute: Seconds
    """As the file has it: the configured sleep in v0.5 and v1.0, the measured one since 2.0."""
    printed_au_percent: float | None
    printed_samples_per_second: float | None

    @property
    def steps(self) -> int:
        """Steps of the block."""
        return len(self.proc)


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
    """Whether dlemu wrote these files in DLIO's place, as the first line of its log says."""

    def span(self, rank: int, block: BlockKey) -> Span | None:
        """Return a block's time stamps: the rank's own, else those of the lowest rank that has them."""
        for source in (rank, *sorted(self.spans)):
            span = self.spans.get(source, {}).get(block)
            if span is not None:
                return span
        return None

    def blocks(self) -> list[BlockKey]:
        """Return the blocks that any file tells of, in order."""
        told = [*self.arrays.values(), *self.spans.values()]
        return sorted({block for one in told for block in one})


def read_logs(folder: str, names: list[str], started: str | None, findings: list[Finding]) -> Logs:
    """Return what the files of a folder, whose names are given, tell of steps and blocks.

    `started` is the time stamp of the run's start.
    """
    outputs = {int(match[1]): match[0] for match in map(_OUTPUT.match, names) if match}
    stats = {int(match[1] or -1): match[0] for match in map(_STATS.match, names) if match}
    arrays = {rank: _rank(os.path.join(folder, name), findings) for rank, name in sorted(outputs.items())}
    start_us = stamp_us(started)
    spans = {max(0, rank): read_spans(os.path.join(folder, stats[rank]), start_us, findings) for rank in sorted(stats)}
    return Logs(
        arrays={rank: blocks for rank, blocks in arrays.items() if blocks},
        spans={rank: blocks for rank, blocks in spans.items() if blocks},
        measured_compute=any(rank >= 0 for rank in stats),
        by_dlemu=_LOG in names and _names_dlemu(os.path.join(folder, _LOG)),
    )


def _names_dlemu(log: str) -> bool:
    try:
        with open(log, "rb") as lines:
            return b"dlemu" in lines.read(_LOG_START).partition(b"\n")[0]
    except OSError:
        return False


def _rank(path: str, findings: list[Finding]) -> dict[BlockKey, BlockArrays]:
    content = read_json(path, findings)
    found = {}
    for epoch, told in epochs_of(content):
        for name in mapping(told.get("proc")):
            number = block_number(name)
            if number is not None:
                arrays = _arrays(told, name, f"{os.path.basename(path)}, epoch {epoch}, {name}", findings)
                if arrays:
                    found[epoch, number] = arrays
    return found


def _arrays(told: Mapping[str, Any], name: str, where: str, findings: list[Finding]) -> BlockArrays | None:
    lists = {key: _seconds(mapping(told.get(key)).get(name)) for key in ("load", "proc", "compute")}
    missing = [key for key, values in lists.items() if values is None]
    load, proc, compute = lists.values()
    if load is None or proc is None or compute is None:
        findings.append(unusable(f"{where}: {', '.join(missing)} is no list of seconds"))
        return None
    if not len(load) == len(proc) == len(compute):
        lengths = ", ".join(f"{key} {len(values)}" for key, values in lists.items() if values is not None)
        findings.append(unusable(f"{where}: lists of unequal length ({lengths})"))
        return None
    return BlockArrays(
        load=load,
        proc=proc,
        compute=compute,
        printed_au_percent=number(mapping(told.get("au")).get(name)),
        printed_samples_per_second=number(mapping(told.get("throughput")).get(name)),
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
