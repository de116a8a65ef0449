"""The rows that the hook (dlemu/record.py) left: one file a process, a JSON object a line, read into typed values."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from datagen.errors import UserError

VERSION = 1
"""Of the rows that are read here; as in the hook."""
ENDING = ".jsonl"


class Process(msgspec.Struct, tag_field="k", tag="process", kw_only=True):
    """The first row of a process."""

    version: int
    pid: int
    parent: int | None
    """Of a worker: the process that started it."""
    rank: int | None
    ranks: int
    python: str
    torch: str
    cores: int
    seen: list[str] = msgspec.field(default_factory=list)


class Pass(msgspec.Struct, tag_field="k", tag="pass", kw_only=True):
    """A loader begins to deliver."""

    number: int = msgspec.field(name="pass")
    loader: int
    iterable: bool
    workers: int
    prefetch: int | None
    pin: bool
    persistent: bool
    method: str
    batch: int | None
    samples: int | None
    """Of the dataset, where it says."""
    order: str
    t: int


class Batch(msgspec.Struct, tag_field="k", tag="batch", kw_only=True):
    """The trainer was given a batch: it requested it at `t0` and had it at `t1`, ns."""

    number: int = msgspec.field(name="pass")
    i: int
    serial: int
    t0: int
    t1: int
    grad: bool
    cpu0: int
    """CPU ns of the process at `t0`; so `cpu1`."""
    cpu1: int
    queue0: int = 0
    """ns that the trainer's thread had wanted a core until `t0`; so `queue1`."""
    queue1: int = 0
    device: int = -1
    """Bytes that the process had from devices until then."""
    thread: int
    main_queue: int = 0
    """As `queue1`, of the process's first thread, where another one takes the batches."""
    drained: bool | None = None
    """The accelerator had nothing left to do at `t0`; None without one."""
    pids: list[int] = msgspec.field(default_factory=list)


class Over(msgspec.Struct, tag_field="k", tag="over", kw_only=True):
    """The trainer requested one at `t0`, and the pass was over."""

    number: int = msgspec.field(name="pass")
    t0: int
    cpu0: int
    queue0: int = 0


class Fetch(msgspec.Struct, tag_field="k", tag="fetch", kw_only=True):
    """A batch was made. -1: the kernel does not report it."""

    t0: int
    t1: int
    n: int | None
    bytes: int
    """Of the arrays in the batch."""
    cpu: int
    queue: int
    read: int
    """By all threads of the process, as some libraries read by threads of their own; so `calls` and `device`."""
    calls: int
    device: int
    process_read: int
    """Of the whole process until the batch's end, without the hook's own; `_in`: while the batch was made."""
    process_read_in: int
    process_device: int
    process_device_in: int
    process_cpu: int
    process_cpu_in: int
    system_cpu: int
    opens: int
    maps: int = 0
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
    """What the accelerator spent on the batch of that `serial`, and how long it had waited before."""

    serial: int
    ms: float
    waited_ms: float


class End(msgspec.Struct, tag_field="k", tag="end", kw_only=True):
    """The window of this process was over."""

    why: str
    t: int


Row = Process | Pass | Batch | Over | Fetch | Step | Save | Device | End


@dataclass
class ProcessRows:
    """All rows of one process, each kind in its order."""

    process: Process
    passes: list[Pass] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    overs: list[Over] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)


def read_rows(folder: str) -> list[ProcessRows]:
    """Return the rows of each process in a folder, in the order of their begin.

    What a killed process left half written is passed over. Raises UserError for a folder that can't be read, or rows of
    another version.
    """
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*" + ENDING))):
        try:
            with open(path, "rb") as lines:
                rows = _decoded(lines.read().split(b"\n"))
        except OSError as error:
            raise UserError(f"{path} can't be read ({error.strerror}): wanted rows that `dlemu record` left") from None
        if rows is not None:
            found.append(rows)
    return sorted(found, key=lambda rows: min((one.t for one in rows.passes), default=0))


def _decoded(lines: Sequence[bytes]) -> ProcessRows | None:
    decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(Row)
    rows: ProcessRows | None = None
    for line in lines:
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError:  # the last line of a killed process, or one that a full disk cut
            continue
        if isinstance(row, Process):
            if row.version != VERSION:
                raise UserError(f"these rows are of version {row.version}, wanted {VERSION}: record with this dlemu")
            rows = ProcessRows(row)
        elif rows is not None:
            _put(rows, row)
    return rows


def _put(rows: ProcessRows, row: Row) -> None:
    match row:
        case Pass():
            rows.passes.append(row)
        case Batch():
            rows.batches.append(row)
        case Over():
            rows.overs.append(row)
        case Fetch():
            rows.fetches.append(row)
        case Step():
            rows.steps.append(row)
        case Save():
            rows.saves.append(row)
        case Device():
            rows.devices.append(row)
        case End():
            rows.ends.append(row)
