"""When the blocks of a run began and ended, by the time stamps in [R_]per_epoch_stats.json."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dlemu.mlperf.audit.tolerant import mapping, read_json, stamp_us
from dlemu.mlperf.finding import Finding

BlockKey = tuple[int, int]
"""Epoch and block, each from 1."""
STAMP_SECONDS = 0.1
"""How far a stamp lies from the moment it is of, at most: DLIO writes a line to its log in between."""

_BLOCK = re.compile(r"^block(\d{1,9})$")
_NUMBER = re.compile(r"^\d{1,9}$")


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
    """Return the blocks that a file of stamps tells of; `started_us` is when the run began.

    DLIO ends the last block of an epoch with a checkpoint behind it twice, and prints what the second time gave: just
    before the checkpoint begins (`_train` in its main.py, v0.5 to v2.0). v0.5 and v1.0 always do; since v2.0 it
    depends on the version, so both ends are kept.
    """
    epochs = list(epochs_of(read_json(path, findings)))
    met = [started_us, *(stamp_us(part.get("end")) for _, told in epochs for part in _meetings(told))]
    known = [moment for moment in met if moment is not None]
    found = {}
    for epoch, told in epochs:
        closed = stamp_us(told.get("end"))
        for name, stamps in told.items():
            number = block_number(name)
            if number is None:
                continue
            start, end = (stamp_us(mapping(stamps).get(key)) for key in ("start", "end"))
            if start is None or end is None or end <= start:
                where = f"{os.path.basename(path)}, epoch {epoch}, {name}"
                findings.append(unusable(f"{where}: no end after its start"))
                continue
            found[epoch, number] = Span(
                start_us=start,
                end_us=_later(told, f"ckpt{number}", end) or end,
                window_us=max((moment for moment in known if moment <= start), default=None),
                closed_us=closed if closed is not None and closed >= end else None,
                checkpoint_us=_later(told, f"save_ckpt{number}", end),
            )
    return found


def _meetings(told: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what ends with a meeting of all ranks: the epoch, and each of its blocks."""
    yield told
    yield from (mapping(part) for name, part in told.items() if block_number(name) is not None)


def _later(told: Mapping[str, Any], checkpoint: str, end_us: int) -> int | None:
    """Return when a block's checkpoint began, if that was after the block's first end."""
    began = stamp_us(mapping(told.get(checkpoint)).get("start"))
    return began if began is not None and began > end_us else None


def block_number(name: object) -> int | None:
    """Return 3 of `block3`, None for any other name."""
    found = _BLOCK.match(name) if isinstance(name, str) else None
    return int(found[1]) if found else None


def epochs_of(content: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield number and content of each epoch in one of DLIO's files."""
    for key, told in mapping(content).items():
        if isinstance(key, str) and _NUMBER.match(key) and isinstance(told, Mapping):
            yield int(key), told


def unusable(seen: str) -> Finding:
    """Return the finding of a block that can't be used."""
    fix = "take the file from the run again; the block is left out"
    return Finding("error", "file.unusable", seen, "what DLIO writes: finite seconds, one a step", fix)
