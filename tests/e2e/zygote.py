"""A process that has imported dlemu and forks whoever is to run a command: half a command's time is its imports.

A command that starts so is a process of its own in a session of its own, with its own folder, environment and streams,
as one that the shell starts; only what Python and the libraries read while they start is the zygote's. So commands
whose environment says anything about that (`KEPT`) are started by a shell's means.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import re
import select
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import IO

KEPT = ("PYTHON", "LD_", "LC_", "LANG", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_", "DLEMU_", "_DLEMU", "PMI", "OMPI_")
"""What a variable's name begins with that Python, a library or dlemu reads while it starts."""
_APART = {"dlemu.contrib.record.recorder"}
"""They do something when they are imported, or import what dlemu itself imports only when it has to."""
_LOADERS_AND_TESTS = re.compile(r"^dlemu\.(loaders|contrib\.dali)\.|\.tests\b")
_FRAMEWORKS = {"torch", "tensorflow", "mpi4py", "h5py"}
_MOST_BYTES = 1 << 20


def _kept(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(KEPT)}


class Zygote:
    """Starts commands; with torch imported, those that read by its loader: importing it takes two CPU seconds."""

    def __init__(self, *, torch: bool) -> None:
        self._kept = _kept(dict(os.environ))
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.zygote", str(there.fileno()), *(["torch"] if torch else [])],
                pass_fds=[there.fileno()],
            )
        atexit.register(self.close)

    @property
    def process(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End it; commands that run go on."""
        self._socket.close()
        self._process.wait()

    def can_run(self, environment: dict[str, str]) -> bool:
        """Say whether a command of this environment would start as by a shell."""
        return self._process.poll() is None and _kept(environment) == self._kept

    def start(self, words: list[str], cwd: str, environment: dict[str, str]) -> subprocess.Popen[str]:
        """Start a program, in a session of its own, with pipes for its output."""
        here, there = socket.socketpair()
        outputs = [os.pipe() for _ in range(2)]
        request = json.dumps({"words": words, "cwd": cwd, "environment": environment}).encode()
        passed = [there.fileno(), *(write for _, write in outputs)]
        self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", passed))])
        there.close()
        for _, write in outputs:
            os.close(write)
        return _Forked(words, here, *(open(read, errors="replace") for read, _ in outputs))


class _Forked(subprocess.Popen[str]):
    """A command as its starter sees it; its parent is the zygote, which says how it ended."""

    _child_created = False  # by this process: nothing is left to be done in the end

    def __init__(self, words: list[str], answers: socket.socket, out: IO[str], err: IO[str]) -> None:
        self.args, self.stdin, self.stdout, self.stderr = words, None, out, err
        self.returncode: int | None = None
        self._answers, self._said = answers, b""
        self.pid = int(self._line(None) or 0)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            line = self._line(timeout)
            if line is None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(line)
            self._answers.close()
        return self.returncode

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        assert input is None
        assert self.stdout is not None
        assert self.stderr is not None
        chunks: dict[int, list[bytes]] = {self.stdout.fileno(): [], self.stderr.fileno(): []}
        _collect(chunks, self.args, timeout)
        out, err = (b"".join(parts).decode(errors="replace") for parts in chunks.values())
        self.wait(timeout)
        self.stdout.close()
        self.stderr.close()
        return out, err

    def _line(self, timeout: float | None) -> bytes | None:
        """Return the next line of the zygote's, None where none comes in time."""
        while b"\n" not in self._said:
            if not select.select([self._answers], [], [], timeout)[0]:
                return None
            data = self._answers.recv(64)
            assert data, "the zygote is gone"
            self._said += data
        line, self._said = self._said.split(b"\n", 1)
        return line


def _collect(chunks: dict[int, list[bytes]], words: object, timeout: float | None) -> None:
    """Read descriptors to their ends; raises subprocess.TimeoutExpired."""
    poll, left = select.poll(), set(chunks)
    deadline = None if timeout is None else time.monotonic() + timeout
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    while left:
        found = poll.poll(None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic())))
        if not found:
            raise subprocess.TimeoutExpired(str(words), timeout or 0.0)
        for descriptor, _ in found:
            data = os.read(descriptor, 1 << 16)
            if data:
                chunks[descriptor].append(data)
            else:
                poll.unregister(descriptor)
                left.discard(descriptor)


@functools.cache
def zygote(*, torch: bool) -> Zygote:
    """Return this process's zygote with or without torch, which starts when it is first wanted."""
    started = Zygote(torch=torch)
    _processes.append(started.process)
    return started


_processes: list[int] = []


def zygote_processes() -> list[int]:
    """Return the process ids of this process's zygotes."""
    return _processes


# the zygote itself


def _import_all(further: list[str]) -> None:
    import dlemu

    for module in pkgutil.walk_packages(dlemu.__path__, "dlemu.", onerror=lambda _: None):
        if module.name not in _APART and not _LOADERS_AND_TESTS.search(module.name):
            importlib.import_module(module.name)
    found = _FRAMEWORKS & set(sys.modules)
    assert not found, f"{found} came along: dlemu imports them only when they are wanted"
    for name in further:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _serve(requests: socket.socket) -> dict[str, object] | None:
    """Fork for each request; return it in the process that is to run it, None once nobody wants any more."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of a process: its number, who waits for it
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != requests.fileno():
                process, waiting = running.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with contextlib.suppress(OSError), waiting:
                    waiting.sendall(f"{status}\n".encode())
                continue
            data, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
            if not data:
                return None
            waiting = socket.socket(fileno=descriptors[0])
            process = os.fork()
            if not process:
                os.dup2(descriptors[1], 1)
                os.dup2(descriptors[2], 2)
                for other in (*descriptors[1:], *running):
                    os.close(other)
                for _, one in running.values():
                    one.close()
                requests.close()
                found: dict[str, object] = json.loads(data)
                return found | {"waiting": waiting}
            for passed in descriptors[1:]:
                os.close(passed)
            descriptor = os.pidfd_open(process)
            running[descriptor] = process, waiting
            poll.register(descriptor, select.POLLIN)


def _become(request: dict[str, object]) -> None:
    """Be as a process that was started to run a program."""
    os.setsid()
    words, environment = request["words"], request["environment"]
    assert isinstance(words, list)
    assert isinstance(environment, dict)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    sys.path[0] = str(Path(words[0]).parent)
    waiting = request["waiting"]
    assert isinstance(waiting, socket.socket)
    with waiting:
        waiting.sendall(f"{os.getpid()}\n".encode())
    program = types.ModuleType("__main__")  # what processes that are spawned import again
    program.__file__ = words[0]
    sys.modules["__main__"] = program


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of the tests is theirs
    _import_all(sys.argv[2:])
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    from dlemu.__main__ import main

    if request is not None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in a program that has only begun: no traceback
        _become(request)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main()


if __name__ == "__main__":
    _main()
