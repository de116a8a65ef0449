"""Child processes that are timed, watched from outside, and ended with their parent."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Self

import psutil

from datagen.errors import DlemuError

END_SECONDS = 15.0
"""Time between SIGTERM and SIGKILL; dlemu gives its ranks 5 s."""

_POLL_SECONDS = 0.05
_MEMORY_POLL_SECONDS = 1.0
"""Not shorter, because reading the memory takes the kernel some ms per process."""


@dataclass(frozen=True)
class Ended:
    """The resources that a child used, with all processes it waited for."""

    status: int
    wall_seconds: float
    cpu_seconds: float
    output: str
    """Its stdout and stderr."""
    pss_bytes: int
    """Maximum memory of all its processes together; 0 if it ended before the first sample."""
    read_bytes: int
    """Bytes of its read calls, from the page cache, too, but without mapped files."""


class Child:
    """A process in a session of its own, with its descendants."""

    def __init__(self, argv: Sequence[str], output: str, niceness: int) -> None:
        self.started_ns = time.monotonic_ns()
        self._argv, self._output = argv, output
        # In a session of its own, a child does not get the terminal's Ctrl-C: `running` ends children in order.
        with open(output, "wb") as out:
            self._process = subprocess.Popen(
                ["nice", "-n", str(niceness), *argv] if niceness else argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def output(self) -> str:
        """The output so far."""
        with open(self._output, errors="replace") as lines:
            return lines.read()

    def end(self, accepted: Sequence[int] = (0,)) -> int:
        """Wait for the end and return the exit status; raises DlemuError if it is not an accepted one."""
        status = self._process.wait()
        if status not in accepted:
            raise DlemuError(
                f"`{' '.join(self._argv)}` ended with status {status}, wanted {' or '.join(map(str, accepted))}; "
                f"it printed:\n{self.output.rstrip()}"
            )
        return status

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Poll until `reached()` returns True; raises DlemuError if the child ends before."""
        while not reached():
            if self.ended:
                raise self._ended_early()
            time.sleep(_POLL_SECONDS)

    def _ended_early(self) -> DlemuError:
        return DlemuError(
            f"`{' '.join(self._argv)}` ended before it came to what was to be measured; run it by itself to see why. "
            f"It printed:\n{self.output.rstrip()}"
        )

    def tree(self) -> list[psutil.Process]:
        """Return the process and its living descendants; raises DlemuError if it has ended."""
        try:
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            raise self._ended_early() from None

    def stop(self) -> None:
        """End the process, if it still runs, by SIGTERM; if that takes too long, kill its group."""
        if self.ended:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
            return
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def running(argv: Sequence[str], *, niceness: int = 0) -> Iterator[Child]:
    """Start a program, and end it at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="dlemu-bench-") as folder:
        child = Child(argv, os.path.join(folder, "output"), niceness)
        try:
            yield child
        finally:
            child.stop()


def run(argv: Sequence[str], *, accepted: Sequence[int] = (0,)) -> Ended:
    """Run one program to its end; raises DlemuError if its exit status is not an accepted one."""
    before, read_before = children_cpu_seconds(), _read_bytes()
    with running(argv) as child, MemoryWatch(child) as memory:
        status = child.end(accepted)
        wall_seconds = (time.monotonic_ns() - child.started_ns) / 1e9
        cpu_seconds, read_bytes = children_cpu_seconds() - before, _read_bytes() - read_before
        return Ended(status, wall_seconds, cpu_seconds, child.output, memory.max_pss_bytes, read_bytes)


class MemoryWatch:
    """Samples the memory of a program and its descendants in a thread, while the block lasts."""

    def __init__(self, child: Child) -> None:
        self.max_pss_bytes = 0
        self._child = child
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(_MEMORY_POLL_SECONDS):
            with contextlib.suppress(DlemuError):  # the program has just ended
                self.max_pss_bytes = max(self.max_pss_bytes, tree_pss_bytes(self._child.tree()))


def run_together(argvs: Sequence[Sequence[str]], *, niceness: int = 0) -> list[str]:
    """Run programs at the same time and return the output of each; raises DlemuError if one fails."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(running(argv, niceness=niceness)) for argv in argvs]
        for child in children:
            child.end()
        return [child.output for child in children]


def children_cpu_seconds() -> float:
    """Return the user and system time of all ended children, with those they waited for (getrusage)."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read_bytes() -> int:
    """Return the bytes read by this process and by all children it waited for, which the kernel adds."""
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


def tree_cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Return the user and system time of living processes so far, each to the kernel's tick of 10 ms."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def tree_pss_bytes(processes: Sequence[psutil.Process]) -> int:
    """Return the proportional memory of living processes: a page shared by n counts 1/n in each (smaps_rollup)."""
    total = 0
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has just ended
            total += _pss_bytes(process.pid)
    return total


def _pss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def interrupt_once(signal_number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise KeyboardInterrupt, and ignore further signals, which must not interrupt the clean-up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
