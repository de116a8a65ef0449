"""Asynchronous direct reads and writes by the kernel's own AIO, without a library: so many requests always in flight.

The structures and calls are those of include/uapi/linux/aio_abi.h: io_setup(2), io_submit(2), io_getevents(2). With
O_DIRECT the kernel really returns at once from a submission. A batch of completions costs a few numpy calls, whatever
its size.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DlemuError

_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Of io_setup, io_destroy, io_getevents and io_submit, by machine (asm/unistd.h)."""
_PREAD, _PWRITE = 0, 1  # IOCB_CMD_PREAD and IOCB_CMD_PWRITE, linux/aio_abi.h
_IOCB = np.dtype(
    [
        ("data", np.uint64),
        ("key", np.uint32),
        ("flags_rw", np.uint32),
        ("opcode", np.uint16),
        ("priority", np.int16),
        ("descriptor", np.uint32),
        ("buffer", np.uint64),
        ("size", np.uint64),
        ("offset", np.int64),
        ("reserved", np.uint64),
        ("flags", np.uint32),
        ("event", np.uint32),
    ]
)
_EVENT = np.dtype([("data", np.uint64), ("iocb", np.uint64), ("result", np.int64), ("result2", np.int64)])
_DRAWN = 1 << 15
"""Offsets that are drawn at a time."""


@dataclass(frozen=True, eq=False)
class Requests:
    """What was done, one entry a request."""

    end_ns: NDArray[np.int64]
    """CLOCK_MONOTONIC."""
    latency_ns: NDArray[np.int64]
    cpu_seconds: float
    first_byte_ns: NDArray[np.int64] | None = None
    """From sending it to the first byte of its answer; None where bytes do not come one after the other."""
    failed: int = 0
    """Answers that were none, and requested again."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What one job does to one file or device."""

    path: str
    writes: bool
    random: bool
    size_bytes: int
    """Of a request."""
    depth: int
    """Requests in flight."""
    begin: int
    end: int
    """The part of the file that is its own."""
    seconds: float
    seed: int


def why_no_aio() -> str | None:
    """Return why it can't be used here, or None when it can."""
    if platform.machine() not in _NUMBERS:
        return f"the numbers of its system calls are not known for {platform.machine()}"
    try:
        _Context(1).close()
    except OSError as error:
        return f"the kernel refuses io_setup: {error.strerror}"
    return None


def open_stream(path: str, *, writes: bool, flags: int = os.O_DIRECT) -> int:
    """Return a descriptor of what is read or written; raises DlemuError. What is written to is no link: who may write
    into its folder could have put one there, to a file of somebody's."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | (os.O_WRONLY | os.O_NOFOLLOW if writes else os.O_RDONLY))
    except OSError as error:
        raise DlemuError(f"{path} can't be opened: {error.strerror}") from error


def run_stream(stream: Stream) -> Requests:
    """Keep `depth` requests in flight for `seconds`; raises DlemuError for one that failed."""
    descriptor = open_stream(stream.path, writes=stream.writes)
    try:
        return _Stream(stream, descriptor).run()
    finally:
        os.close(descriptor)


class _Context:
    """An AIO context of the kernel's."""

    def __init__(self, depth: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._setup, self._destroy, self._getevents, self._submit = _NUMBERS[platform.machine()]
        self._context = ctypes.c_ulong(0)
        self._call(self._setup, ctypes.c_uint(depth), ctypes.byref(self._context))

    def submit(self, pointers: int, count: int) -> int:
        return self._call(self._submit, self._context, ctypes.c_long(count), ctypes.c_void_p(pointers))

    def wait(self, events: int, most: int) -> int:
        none = ctypes.c_void_p(0)
        return self._call(
            self._getevents, self._context, ctypes.c_long(1), ctypes.c_long(most), ctypes.c_void_p(events), none
        )

    def close(self) -> None:
        self._call(self._destroy, self._context)

    def _call(self, number: int, *arguments: object) -> int:
        while True:
            result: int = self._libc.syscall(ctypes.c_long(number), *arguments)
            if result >= 0:
                return result
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))


class _Stream:
    """One job under way."""

    def __init__(self, stream: Stream, descriptor: int) -> None:
        self._stream, self._random = stream, np.random.default_rng(stream.seed)
        self._slots = (stream.end - stream.begin) // stream.size_bytes
        self._next, self._drawn = 0, np.empty(0, np.int64)
        place = -(-stream.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, stream.depth * place)
        if stream.writes:
            self._memory[:] = self._random.bytes(stream.depth * place)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._iocbs = np.zeros(stream.depth, _IOCB)
        self._iocbs["data"] = np.arange(stream.depth)
        self._iocbs["opcode"] = _PWRITE if stream.writes else _PREAD
        self._iocbs["descriptor"], self._iocbs["size"] = descriptor, stream.size_bytes
        self._iocbs["buffer"] = base + np.arange(stream.depth, dtype=np.uint64) * np.uint64(place)
        self._addresses = self._iocbs.ctypes.data + np.arange(stream.depth, dtype=np.uint64) * np.uint64(64)
        self._events = np.zeros(stream.depth, _EVENT)

    def run(self) -> Requests:
        depth, context = self._stream.depth, _Context(self._stream.depth)
        begun = np.zeros(depth, np.int64)
        ends: list[NDArray[np.int64]] = []
        latencies: list[NDArray[np.int64]] = []
        cpu = time.process_time()
        deadline = time.monotonic_ns() + round(self._stream.seconds * 1e9)
        try:
            self._send(context, np.arange(depth), begun)
            waiting = depth
            while waiting:
                count = context.wait(self._events.ctypes.data, depth)
                now = time.monotonic_ns()
                events = self._events[:count]
                self._check(events["result"])
                done = events["data"].astype(np.int64)
                latencies.append(now - begun[done])
                ends.append(np.full(count, now))
                if now < deadline:
                    self._send(context, done, begun)
                else:
                    waiting -= count
        finally:
            context.close()
        return Requests(np.concatenate(ends), np.concatenate(latencies), time.process_time() - cpu)

    def _send(self, context: _Context, slots: NDArray[np.int64], begun: NDArray[np.int64]) -> None:
        self._iocbs["offset"][slots] = self._stream.begin + self._offsets(len(slots)) * self._stream.size_bytes
        pointers = self._addresses[slots]
        begun[slots] = time.monotonic_ns()
        sent = 0
        while sent < len(slots):
            sent += context.submit(pointers.ctypes.data + 8 * sent, len(slots) - sent)

    def _offsets(self, count: int) -> NDArray[np.int64]:
        """Return the next offsets, in requests."""
        if not self._stream.random:
            self._next += count
            return np.arange(self._next - count, self._next) % self._slots
        if self._next + count > len(self._drawn):
            self._drawn, self._next = self._random.integers(0, self._slots, max(count, _DRAWN)), 0
        self._next += count
        return self._drawn[self._next - count : self._next]

    def _check(self, results: NDArray[np.int64]) -> None:
        wrong = results[results != self._stream.size_bytes]
        if not len(wrong):
            return
        what = "writing" if self._stream.writes else "reading"
        result = int(wrong[0])
        why = os.strerror(-result) if result < 0 else f"{result} of {self._stream.size_bytes} bytes"
        raise DlemuError(f"{self._stream.path}: {what} failed: {why}")
