"""A storage of folders with one fault: the nth call of a kind fails with an error, is cut short, slow, or hangs.

Within a process, `plan` sets the fault. For the ranks and workers of a run, the options of the storage do:
`storage.storage_type=tests.faulty_storage +storage.storage_options.call=read ...`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from datagen.storage import posix
from datagen.storage.storage_base import FOLDERS, Bytes, Entry, Reader, StorageSpec, Writer

ERRORS = ("EIO", "ENOSPC", "ESTALE", "EACCES")
SLOW_SECONDS = 0.05
HANG_SECONDS = 1e6


@dataclass
class Plan:
    """The fault `how` of the call number `at` (from 1) of a kind; `calls` counts the calls of all kinds."""

    call: str = ""
    at: int = 0
    how: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    happened: bool = False
    path: str = ""
    """Path of the call that had the fault."""

    def meet(self, call: str, path: str) -> bool:
        """Count a call, and raise, wait or hang if it has the fault; return whether to cut it short."""
        with self.lock:
            self.calls[call] += 1
            hit = call == self.call and self.calls[call] == self.at
            self.happened |= hit
            self.path = path if hit else self.path
        if hit and self.how == "slow":
            time.sleep(SLOW_SECONDS)
        elif hit and self.how == "hang":
            time.sleep(HANG_SECONDS)
        elif hit and self.how in ERRORS:
            number = getattr(errno, self.how)
            raise OSError(number, os.strerror(number), path)
        return hit and self.how == "short"


_current = Plan()


@contextlib.contextmanager
def plan(call: str = "", at: int = 0, how: str = "") -> Iterator[Plan]:
    """Give every storage of this module that is made in the block this plan."""
    global _current
    before, _current = _current, Plan(call, at, how)
    try:
        yield _current
    finally:
        _current = before


class Storage(posix.Storage):
    """Ordinary files with the plan's fault; with the option `hang`, each size takes so many seconds."""

    def __init__(self, spec: StorageSpec = FOLDERS) -> None:
        super().__init__(spec)
        options = dict(spec.options)
        self._hang_seconds = float(options.get("hang") or 0)
        self._plan = _current
        if "call" in options:
            self._plan = Plan(str(options["call"]), int(options["at"] or 0), str(options["how"]))

    def open(self, path: str) -> Reader:  # type: ignore[override]  # a reader of the same protocol
        self._plan.meet("open", path)
        return _Reader(super().open(path), self._plan, path)

    def open_received(self, path: str) -> Reader:  # type: ignore[override]  # a reader of the same protocol
        self._plan.meet("open", path)
        return _Reader(super().open_received(path), self._plan, path)

    def create(self, path: str) -> Writer:  # type: ignore[override]  # the same of writers
        self._plan.meet("create", path)
        return _Writer(super().create(path), self._plan, path)

    def entries(self, folder: str) -> contextlib.AbstractContextManager[Iterator[Entry]]:  # type: ignore[override]
        self._plan.meet("list", folder)
        return super().entries(folder)

    def size_bytes(self, path: str) -> int:
        time.sleep(self._hang_seconds)
        self._plan.meet("size", path)
        return super().size_bytes(path)

    def sync(self, folder: str) -> None:
        self._plan.meet("sync_folder", folder)
        super().sync(folder)

    def free_bytes(self, folder: str) -> int | None:
        self._plan.meet("free", folder)
        return super().free_bytes(folder)

    def remove(self, path: str) -> None:
        self._plan.meet("remove", path)
        super().remove(path)

    def make_folder(self, folder: str) -> None:
        self._plan.meet("folder", folder)
        super().make_folder(folder)


class _Reader(Reader):
    def __init__(self, reader: Reader, plan: Plan, path: str) -> None:
        super().__init__(reader.size_bytes)
        self._reader, self._plan, self._path = reader, plan, path

    def read_into(self, buffer: memoryview, offset: int) -> int:
        short = self._plan.meet("read", self._path)
        if short and offset >= self.size_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)  # nothing can't be cut short
        half = min(len(buffer), self.size_bytes - offset) // 2
        count = self._reader.read_into(buffer[:half] if short else buffer, offset)
        self.read_calls, self.app_bytes = self._reader.read_calls, self._reader.app_bytes
        return count

    def close(self) -> None:
        self._reader.close()


class _Writer(Writer):
    def __init__(self, writer: Writer, plan: Plan, path: str) -> None:
        self._writer, self._plan, self._path = writer, plan, path

    def write_at(self, data: Bytes, offset: int) -> None:
        self._plan.meet("write", self._path)
        self._writer.write_at(data, offset)

    def sync(self) -> None:
        self._plan.meet("sync", self._path)
        self._writer.sync()

    def commit(self) -> None:
        self._plan.meet("rename", self._path)
        self._writer.commit()

    def discard(self) -> None:
        self._writer.discard()
