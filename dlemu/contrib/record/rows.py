"""Makes a command load the hook (recorder.py), and reads the hook's rows: JSON lines, one file per process.

Times are in ns; "queue" is the time that a thread was runnable without a core. In `Batch` and `PassEnd`, CPU time and
queue are totals since the start, read at `t0` or `t1`; in `Fetch`, counters cover the load of the batch unless noted.

    trainer:  Batch t0 ---- waits ---- t1 ---- computes, `Step` ---- t0 of the next Batch, or of the PassEnd
    worker:   Fetch t0 -- loads -- t1      (without workers, the trainer loads, between t0 and t1 of the Batch)
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_type_hints

import msgspec

from dlemu.extend import UserError, owned, write_text

VERSION = 1  # the same as ROWS_VERSION of the hook
ENDING = ".jsonl"
HOOK, ROWS = "hook", "rows"  # subfolders of a recorded job's folder, for the hook and its rows
_SOURCE = Path(__file__).with_name("recorder.py")
# Files that the job's Python, of any version, writes beside the hook; dlemu removes them with it.
_COMPILED = [f"sitecustomize.cpython-3{minor}.pyc" for minor in range(9, 30)]


class Process(msgspec.Struct, tag_field="k", tag="process", kw_only=True):
    """The first row of a process."""

    version: int
    pid: int
    ranks: int


class Pass(msgspec.Struct, tag_field="k", tag="pass", kw_only=True):
    """A pass, one iteration over a DataLoader, began."""

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
    """The trainer requested a batch at `t0` and received it at `t1`."""

    number: int = msgspec.field(name="pass")
    serial: int
    t0: int
    t1: int
    cpu0: int
    cpu1: int
    queue0: int = 0  # time that the trainer's thread was runnable without a core
    queue1: int = 0
    thread: int
    drained: bool | None = None  # the accelerator was idle at `t0`; None without an accelerator
    pids: list[int] = msgspec.field(default_factory=list)


class PassEnd(msgspec.Struct, tag_field="k", tag="over", kw_only=True):
    """The trainer requested a batch at `t0`, but the pass had no more (StopIteration)."""

    number: int = msgspec.field(name="pass")
    t0: int
    cpu0: int
    queue0: int = 0


class Fetch(msgspec.Struct, tag_field="k", tag="fetch", kw_only=True):
    """A worker or the trainer loaded a batch from `t0` to `t1`; -1 is a value that the kernel does not report."""

    t0: int
    t1: int
    n: int | None
    bytes: int
    cpu: int
    queue: int
    read: int  # bytes read by all threads of the process, as libraries may start some; also `calls`, `device`
    calls: int
    device: int
    process_read: int  # since the process began, without the hook's reads; so are `process_device`, `process_cpu`
    process_device: int
    process_cpu: int
    process_cpu_in: int  # while the batch was loaded
    system_cpu: int
    opens: int
    mapped: int = 0  # files mapped during the load; for the 1st, 2nd, 4th ... batch all mapped files
    arrays: int
    items: int | None = None  # items of a map dataset; one item may be a whole batch
    maps: int = 0  # how often mapped NumPy arrays were indexed
    map_bytes: int = 0  # bytes that the indexing selected
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


class DeviceTime(msgspec.Struct, tag_field="k", tag="device", kw_only=True):
    """How long the accelerator computed on the batch with this `serial`, and was idle before it (-1: unknown)."""

    serial: int
    ms: float
    waited_ms: float


Row = Process | Pass | Batch | PassEnd | Fetch | Step | Save | DeviceTime


@dataclass
class ProcessRows:
    """All rows of one process by type, each in the order of the file."""

    process: Process
    passes: list[Pass] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    pass_ends: list[PassEnd] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    device_times: list[DeviceTime] = field(default_factory=list)


# Type of a row -> name of its list in ProcessRows.
_LIST_BY_TYPE = {hint.__args__[0]: name for name, hint in get_type_hints(ProcessRows).items() if name != "process"}


def with_hook(folder: str, rows: str, *, steps: int = 0, minutes: float, skip: int = 0) -> dict[str, str]:
    """Install the hook below `folder`; return the environment variables with which a command records into `rows`.

    The recording ends after `skip` + `steps` batches of a trainer (0 steps: no limit) and the next, whose request ends
    the last one's step; or after `minutes`.
    """
    owned.claim(folder, HOOK + "/")
    hook_folder = os.path.abspath(os.path.join(folder, HOOK))
    os.makedirs(hook_folder, exist_ok=True)
    owned.claim(hook_folder, "sitecustomize.py", "__pycache__/")
    cache_folder = os.path.join(hook_folder, "__pycache__")
    os.makedirs(cache_folder, exist_ok=True)
    owned.claim(cache_folder, *_COMPILED)
    write_text(hook_folder, "sitecustomize.py", _SOURCE.read_text())  # Python imports this module when it starts.
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [hook_folder, os.environ.get("PYTHONPATH")])),
        "DLEMU_RECORD": os.path.abspath(rows),
        "DLEMU_RECORD_WINDOW": f"{steps and skip + steps + 1} {minutes!r}",
    }


def read_rows(folder: str) -> list[ProcessRows]:
    """Return the rows of each process, in the order of their first pass; raises UserError."""
    processes = []
    for path in row_files(folder):
        try:
            with open(path, "rb") as lines:
                rows = _decode(lines.read().split(b"\n"))
        except OSError as error:
            raise UserError(f"{path} can't be read ({error.strerror}): wanted rows written by `dlemu record`") from None
        if rows is not None:
            processes.append(rows)
    return sorted(processes, key=lambda rows: min((begun.t for begun in rows.passes), default=0))


def row_files(folder: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(folder), "*" + ENDING)))


def _decode(lines: Sequence[bytes]) -> ProcessRows | None:
    """Return the rows in the lines of a file; None if the first row, that of the process, is missing."""
    rows: ProcessRows | None = None
    for line in lines:
        try:  # File names that are not UTF-8 have surrogates, which json decodes and msgspec refuses.
            row: Row = msgspec.convert(json.loads(line), Row)
        except (ValueError, RecursionError):  # A killed process or a full disk left half a line; or an unknown row.
            continue
        if isinstance(row, Process):
            if row.version != VERSION:
                raise UserError(f"these rows have version {row.version}, wanted {VERSION}: record the job again")
            rows = ProcessRows(row)
        elif rows is not None:
            getattr(rows, _LIST_BY_TYPE[type(row)]).append(row)
    return rows
