"""Reads the rows that the hook (recorder.py) wrote: one file per process, one JSON object per line.

Keys that nothing is computed from are skipped. Times are in ns. "Queue" is time that a thread was runnable without a
core. In `Batch` and `Over`, CPU time, queue and bytes are running totals, at `t0` or `t1`; in `Fetch` they are those of
loading the batch, except where noted.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from dlemu.extend import UserError

VERSION = 1
"""Version of the rows; the same as ROWS_VERSION of the hook."""
ENDING = ".jsonl"


class Process(msgspec.Struct, tag_field="k", tag="process", kw_only=True):
    """The first row of a process."""

    version: int
    pid: int
    rank: int | None
    ranks: int


class Pass(msgspec.Struct, tag_field="k", tag="pass", kw_only=True):
    """A pass began: an iteration over a DataLoader."""

    number: int = msgspec.field(name="pass")
    iterable: bool
    workers: int
    prefetch: int | None
    method: str
    batch: int | None
    samples: int | None
    order: str
    t: int


class Batch(msgspec.Struct, tag_field="k", tag="batch", kw_only=True):
    """The trainer requested a batch at `t0`, and received it at `t1`."""

    number: int = msgspec.field(name="pass")
    serial: int
    t0: int
    t1: int
    grad: bool
    cpu0: int
    cpu1: int
    queue0: int = 0
    """Time that the trainer's thread was runnable without a core."""
    queue1: int = 0
    device: int = -1
    """Bytes that the process read from devices; -1: the kernel does not report it."""
    thread: int
    drained: bool | None = None
    """The accelerator was idle at `t0`; None without an accelerator."""
    pids: list[int] = msgspec.field(default_factory=list)


class Over(msgspec.Struct, tag_field="k", tag="over", kw_only=True):
    """The trainer requested a batch at `t0`, but the pass was over: StopIteration."""

    number: int = msgspec.field(name="pass")
    t0: int
    cpu0: int
    queue0: int = 0


class Fetch(msgspec.Struct, tag_field="k", tag="fetch", kw_only=True):
    """A worker, or the trainer, loaded a batch from `t0` to `t1`. -1: the kernel does not report the value."""

    t0: int
    t1: int
    n: int | None
    bytes: int
    cpu: int
    queue: int
    read: int
    """Bytes read by all threads of the process, as some libraries start threads; also for `calls` and `device`."""
    calls: int
    device: int
    process_read: int
    """Since the process began, without the hook's reads; `process_*_in`: only while the batch was loaded."""
    process_read_in: int
    process_device: int
    process_device_in: int
    process_cpu: int
    process_cpu_in: int
    system_cpu: int
    opens: int
    mapped: int = 0
    """Files that the batch mapped; after some batches also those that others had mapped."""
    arrays: int
    items: int | None = None
    """Items of a map dataset; a batch may be one of them."""
    maps: int = 0
    """Times that a mapped array of NumPy was indexed, and the bytes taken from it."""
    map_bytes: int = 0
    files: list[str] = msgspec.field(default_factory=list)


class Step(msgspec.Struct, tag_field="k", tag="step", kw_only=True):
    """An optimizer stepped."""

    t: int
    thread: int


class Save(msgspec.Struct, tag_field="k", tag="save", kw_only=True):
    """A checkpoint was written."""

    t0: int
    t1: int
    bytes: int


class Device(msgspec.Struct, tag_field="k", tag="device", kw_only=True):
    """Time that the accelerator computed on the batch with this `serial`, and before that was idle (-1: unknown)."""

    serial: int
    ms: float
    waited_ms: float


Row = Process | Pass | Batch | Over | Fetch | Step | Save | Device
"""Rows of other kinds, such as the end of a recording, are skipped."""


@dataclass
class ProcessRows:
    """All rows of one process by type, each in the order of the file."""

    process: Process
    passes: list[Pass] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    overs: list[Over] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)


_LISTS: dict[type[Row], str] = {
    Pass: "passes",
    Batch: "batches",
    Over: "overs",
    Fetch: "fetches",
    Step: "steps",
    Save: "saves",
    Device: "devices",
}


def read_rows(folder: str) -> list[ProcessRows]:
    """Return the rows of each process, in the order of their first pass; raises UserError."""
    found = []
    for path in _paths(folder):
        try:
            with open(path, "rb") as lines:
                rows = _decode(lines.read().split(b"\n"))
        except OSError as error:
            raise UserError(f"{path} can't be read ({error.strerror}): wanted rows written by `dlemu record`") from None
        if rows is not None:
            found.append(rows)
    return sorted(found, key=lambda rows: min((one.t for one in rows.passes), default=0))


def has_rows(folder: str) -> bool:
    return bool(_paths(folder))


def _paths(folder: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(folder), "*" + ENDING)))


def _decode(lines: Sequence[bytes]) -> ProcessRows | None:
    rows: ProcessRows | None = None
    for line in lines:
        try:  # by json, as a file's name that is no UTF-8 has surrogates, which msgspec refuses
            row: Row = msgspec.convert(json.loads(line), Row)
        except (ValueError, RecursionError):  # truncated: the last line of a killed process, or the disk was full
            continue
        if isinstance(row, Process):
            if row.version != VERSION:
                raise UserError(f"these rows have version {row.version}, wanted {VERSION}: record the job again")
            rows = ProcessRows(row)
        elif rows is not None:
            getattr(rows, _LISTS[type(row)]).append(row)
    return rows
