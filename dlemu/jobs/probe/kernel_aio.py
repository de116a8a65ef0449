"""Asynchronous O_DIRECT reads and writes through the kernel's AIO, without a library, at a constant queue depth.

The structures and system calls are those of include/uapi/linux/aio_abi.h: io_setup(2), io_submit(2), io_getevents(2).
Submissions return at once only with O_DIRECT. A batch of completions costs a few numpy calls, whatever its size.
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

from datagen.errors import UserError

_SYSCALL_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Machine -> system call numbers of io_setup, io_destroy, io_getevents and io_submit (asm/unistd.h)."""
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
_OFFSETS_PER_DRAW = 1 << 15
"""Random offsets that are drawn at a time."""


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests that one job completed, one array element per request."""

    end_ns: NDArray[np.int64]
    """Completion, by CLOCK_MONOTONIC."""
    latency_ns: NDArray[np.int64]
    cpu_seconds: float
    first_byte_ns: NDArray[np.int64] | None = None
    """Time from sending a GET request to the first byte of its response; None for requests of files and devices."""
    failed: int = 0
    """Requests that failed and were retried."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The requests of one job to a file or device."""

    path: str
    writes: bool
    random: bool
    size_bytes: int
    """Bytes of a request."""
    depth: int
    """Requests in flight."""
    begin: int
    """Start of the job's range of the file."""
    end: int
    """End of that range."""
    seconds: float
    seed: int


def why_no_aio() -> str | None:
    """Return why the kernel's AIO can't be used on this host, or None if it can."""
    if platform.machine() not in _SYSCALL_NUMBERS:
        return f"the numbers of its system calls are not known for {platform.machine()}"
    try:
        _Context(1).close()
    except OSError as error:
        return f"the kernel refuses io_setup: {error.strerror}"
    return None


def open_target(path: str, *, writes: bool, flags: int = os.O_DIRECT) -> int:
    """Open a file or device to read or write; raises UserError. A file to write is not opened through a link: another
    user who may write into its folder could have linked it to somebody's file."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | (os.O_WRONLY | os.O_NOFOLLOW if writes else os.O_RDONLY))
    except OSError as error:
        raise UserError(f"{path} can't be opened: {error.strerror}") from error


def run_stream(stream: Stream) -> Requests:
    """Keep `depth` requests in flight for `seconds`; raises UserError if one fails."""
    descriptor = open_target(stream.path, writes=stream.writes)
    try:
        return _Job(stream, descriptor).run()
    finally:
        os.close(descriptor)


class _Context:
    """An AIO context of the kernel."""

    def __init__(self, depth: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._setup, self._destroy, self._getevents, self._submit = _SYSCALL_NUMBERS[platform.machine()]
        self._context = ctypes.c_ulong(0)
        self._call(self._setup, ctypes.c_uint(depth), ctypes.byref(self._context))

    def submit(self, pointers: int, count: int) -> int:
        return self._call(self._submit, self._context, ctypes.c_long(count), ctypes.c_void_p(pointers))

    def wait(self, events: int, limit: int) -> int:
        none = ctypes.c_void_p(0)
        return self._call(
            self._getevents, self._context, ctypes.c_long(1), ctypes.c_long(limit), ctypes.c_void_p(events), none
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


class _Job:
    """A running job: `depth` slots, each with one request in flight and its own part of the buffer."""

    def __init__(self, stream: Stream, descriptor: int) -> None:
        self._stream, self._random = stream, np.random.default_rng(stream.seed)
        self._slots = (stream.end - stream.begin) // stream.size_bytes
        self._next, self._drawn_offsets = 0, np.empty(0, np.int64)
        stride = -(-stream.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, stream.depth * stride)
        if stream.writes:
            self._memory[:] = self._random.bytes(stream.depth * stride)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._iocbs = np.zeros(stream.depth, _IOCB)
        self._iocbs["data"] = np.arange(stream.depth)
        self._iocbs["opcode"] = _PWRITE if stream.writes else _PREAD
        self._iocbs["descriptor"], self._iocbs["size"] = descriptor, stream.size_bytes
        self._iocbs["buffer"] = base + np.arange(stream.depth, dtype=np.uint64) * np.uint64(stride)
        self._addresses = self._iocbs.ctypes.data + np.arange(stream.depth, dtype=np.uint64) * np.uint64(64)
        self._events = np.zeros(stream.depth, _EVENT)

    def run(self) -> Requests:
        depth, context = self._stream.depth, _Context(self._stream.depth)
        started = np.zeros(depth, np.int64)
        ends: list[NDArray[np.int64]] = []
        latencies: list[NDArray[np.int64]] = []
        cpu = time.process_time()
        deadline = time.monotonic_ns() + round(self._stream.seconds * 1e9)
        try:
            self._submit_slots(context, np.arange(depth), started)
            waiting = depth
            while waiting:
                count = context.wait(self._events.ctypes.data, depth)
                now = time.monotonic_ns()
                events = self._events[:count]
                self._check(events["result"])
                done = events["data"].astype(np.int64)
                latencies.append(now - started[done])
                ends.append(np.full(count, now))
                if now < deadline:
                    self._submit_slots(context, done, started)
                else:
                    waiting -= count
        finally:
            context.close()
        return Requests(np.concatenate(ends), np.concatenate(latencies), time.process_time() - cpu)

    def _submit_slots(self, context: _Context, slots: NDArray[np.int64], started: NDArray[np.int64]) -> None:
        self._iocbs["offset"][slots] = self._stream.begin + self._offsets(len(slots)) * self._stream.size_bytes
        pointers = self._addresses[slots]
        started[slots] = time.monotonic_ns()
        sent = 0
        while sent < len(slots):
            sent += context.submit(pointers.ctypes.data + 8 * sent, len(slots) - sent)

    def _offsets(self, count: int) -> NDArray[np.int64]:
        """Return the next `count` offsets, in units of the request size."""
        if not self._stream.random:
            self._next += count
            return np.arange(self._next - count, self._next) % self._slots
        if self._next + count > len(self._drawn_offsets):
            self._drawn_offsets, self._next = self._random.integers(0, self._slots, max(count, _OFFSETS_PER_DRAW)), 0
        self._next += count
        return self._drawn_offsets[self._next - count : self._next]

    def _check(self, results: NDArray[np.int64]) -> None:
        wrong = results[results != self._stream.size_bytes]
        if not len(wrong):
            return
        what = "writing" if self._stream.writes else "reading"
        result = int(wrong[0])
        why = os.strerror(-result) if result < 0 else f"{result} of {self._stream.size_bytes} bytes"
        raise UserError(f"{self._stream.path}: {what} failed: {why}")
