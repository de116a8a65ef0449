"""Child processes that are timed, watched from outside, and never left behind."""

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
"""How long a child that gets SIGTERM may take: dlemu itself gives its ranks 5 s."""

_LOOK_SECONDS = 0.05
_MEMORY_LOOK_SECONDS = 1.0
"""A look takes the kernel some ms for each process."""


@dataclass(frozen=True)
class Ended:
    """What a child took, with all processes it waited for."""

    status: int
    wall_seconds: float
    cpu_seconds: float
    output: str
    """Its stdout and stderr."""
    pss_bytes: int
    """The most memory that all its processes together held at any look; 0 when it ended before."""
    read_bytes: int
    """What its read calls gave, out of memory too; maps of files are not in it."""


class Child:
    """A process in a group of its own."""

    def __init__(self, argv: Sequence[str], output: str, niceness: int) -> None:
        self.started_ns = time.monotonic_ns()
        self._argv, self._output = argv, output
        # Children of a session of their own don't see the terminal's Ctrl-C: `running` ends them in its own order.
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
        """What it has printed so far."""
        with open(self._output, errors="replace") as lines:
            return lines.read()

    def end(self, accepted: Sequence[int] = (0,)) -> int:
        """Wait for it and return its exit status; raises DlemuError when that is not an accepted one."""
        status = self._process.wait()
        if status not in accepted:
            raise DlemuError(
                f"`{' '.join(self._argv)}` ended with status {status}, wanted {' or '.join(map(str, accepted))}; "
                f"it printed:\n{self.output.rstrip()}"
            )
        return status

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Look again and again until `reached()`; raises DlemuError when the child ends before."""
        while not reached():
            if self.ended:
                raise self._too_early()
            time.sleep(_LOOK_SECONDS)

    def _too_early(self) -> DlemuError:
        return DlemuError(
            f"`{' '.join(self._argv)}` ended before it came to what was to be measured; run it by itself to see why. "
            f"It printed:\n{self.output.rstrip()}"
        )

    def tree(self) -> list[psutil.Process]:
        """The process and all its descendants that live now; raises DlemuError when it has ended."""
        try:
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            raise self._too_early() from None

    def stop(self) -> None:
        """End it if it still lives: SIGTERM first, then it and its group are killed."""
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
    """Start a program, which is ended when the block is left, however that happens."""
    with tempfile.TemporaryDirectory(prefix="dlemu-bench-") as folder:
        child = Child(argv, os.path.join(folder, "output"), niceness)
        try:
            yield child
        finally:
            child.stop()


def run(argv: Sequence[str], *, accepted: Sequence[int] = (0,)) -> Ended:
    """Run one program to its end; raises DlemuError when its exit status is not an accepted one."""
    before, read_before = children_cpu_seconds(), _read_bytes()
    with running(argv) as child, MemoryWatch(child) as memory:
        status = child.end(accepted)
        wall_seconds = (time.monotonic_ns() - child.started_ns) / 1e9
        cpu_seconds, read_bytes = children_cpu_seconds() - before, _read_bytes() - read_before
        return Ended(status, wall_seconds, cpu_seconds, child.output, memory.most_pss_bytes, read_bytes)


class MemoryWatch:
    """Looks every now and then at the memory of a program and its descendants, while the block lasts."""

    def __init__(self, child: Child) -> None:
        self.most_pss_bytes = 0
        self._child = child
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_MEMORY_LOOK_SECONDS):
            with contextlib.suppress(DlemuError):  # it has just ended
                self.most_pss_bytes = max(self.most_pss_bytes, tree_pss_bytes(self._child.tree()))


def run_together(argvs: Sequence[Sequence[str]], *, niceness: int = 0) -> list[str]:
    """Run programs at the same time and return the output of each; raises DlemuError when one fails."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(running(argv, niceness=niceness)) for argv in argvs]
        for child in children:
            child.end()
        return [child.output for child in children]


def children_cpu_seconds() -> float:
    """User and system time of all children that have ended, with those they waited for (getrusage)."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read_bytes() -> int:
    """What this process has read so far, with all children that it waited for: the kernel adds theirs to its own."""
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


def tree_cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """User and system time of living processes so far, to the kernel's tick of 10 ms each."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def tree_pss_bytes(processes: Sequence[psutil.Process]) -> int:
    """Proportional memory of living processes: a page that n of them share counts 1/n in each (smaps_rollup)."""
    total = 0
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            total += _pss_bytes(process.pid)
    return total


def _pss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def interrupt_once(signal_number: int, frame: FrameType | None) -> None:
    """Begin to clean up, which a second signal must not cut short: a handler of signals."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
