"""A process that has imported dlemu, and forks a process for each command, because imports take half of its time.

A forked command has its own session, folder, environment and streams, as one that a shell starts. Only what Python and
libraries read at their start is the zygote's. So a command whose environment differs in such variables (`KEPT`) is
started in the usual way.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import inspect
import json
import os
import pkgutil
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from dlemu.ranks.process_control import adopt_orphans

KEPT = ("PYTHON", "LD_", "LC_", "LANG", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_", "DLEMU_", "_DLEMU", "PMI", "OMPI_")
"""Prefixes of variables that Python, a library or dlemu reads at its start. Folders of PYTHONPATH can be added later,
if they have nothing that is already imported."""
_EXCLUDED = {"dlemu.contrib.record.recorder"}
"""Modules that are not imported, because that has effects, or imports what dlemu imports only when needed."""
_LOADERS_AND_TESTS = re.compile(r"^dlemu\.(loaders|contrib\.dali)\.|\.tests\b")
_FRAMEWORKS = {"torch", "tensorflow", "mpi4py", "h5py"}
_MAX_REQUEST_BYTES = 1 << 20


def _kept(environment: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environment.items() if name.startswith(KEPT)}
    return {name: value for name, value in kept.items() if name != "PYTHONPATH"}


class Zygote:
    """Starts commands. With torch imported, which takes two CPU seconds, it is for those that use its loader."""

    def __init__(self, *, torch: bool) -> None:
        self._kept = _kept(dict(os.environ))
        self._requests, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_at_a_time = threading.Lock()
        with child_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.zygote", str(child_end.fileno()), *(["torch"] if torch else [])],
                pass_fds=[child_end.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        self._requests.close()
        self.process.wait()

    def can_run(self, environment: dict[str, str]) -> bool:
        """Return whether a command with this environment would start in the same way as from a shell."""
        return self.process.poll() is None and _kept(environment) == self._kept

    def fork(self, request: dict[str, object], streams: list[int]) -> int:
        """Let the zygote fork a command, which becomes a child of this process; return its process id."""
        with self._one_at_a_time:
            before = adopt_orphans(True)
            socket.send_fds(self._requests, [json.dumps(request).encode()], streams)
            process = self._requests.recv(64)
            adopt_orphans(before)
        assert process, "the zygote is gone"
        return int(process)


class Forked(subprocess.Popen[str]):
    """A command that a zygote forked, in a session of its own, with pipes for its output."""

    def __init__(self, zygote: Zygote, argv: list[str], cwd: str, environment: dict[str, str]) -> None:
        self._zygote = zygote
        super().__init__(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace", cwd=cwd, env=environment
        )

    def _execute_child(self, *args: Any) -> None:
        names = inspect.signature(subprocess.Popen._execute_child).parameters  # type: ignore[attr-defined]
        by_name = dict(zip(list(names)[1:], args, strict=True))
        streams = [by_name["c2pwrite"], by_name["errwrite"]]
        request = {"argv": by_name["args"], "cwd": by_name["cwd"], "environment": by_name["env"]}
        self.pid = self._zygote.fork(request, streams)
        self._child_created = True
        for stream in streams:
            os.close(stream)


@functools.cache
def zygote(*, torch: bool) -> Zygote:
    """Return this process's zygote with or without torch; the first call starts it."""
    started = Zygote(torch=torch)
    zygote_processes.add(started.process.pid)
    return started


zygote_processes: set[int] = set()
"""The process ids of this process's zygotes."""


# the zygote itself


def _import_all(additional: list[str]) -> None:
    import dlemu

    for module in pkgutil.walk_packages(dlemu.__path__, "dlemu.", onerror=lambda _: None):
        if module.name not in _EXCLUDED and not _LOADERS_AND_TESTS.search(module.name):
            importlib.import_module(module.name)
    frameworks = _FRAMEWORKS & set(sys.modules)
    assert not frameworks, f"{frameworks} came along: dlemu imports them only when they are wanted"
    for name in additional:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, and return it in the forked process; return None in the zygote when it is closed."""
    while True:
        data, streams, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 2)
        if not data:
            return None
        intermediate = os.fork()
        if intermediate:
            os.waitpid(intermediate, 0)
            for stream in streams:
                os.close(stream)
            continue
        intermediate = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == intermediate:  # until the tests' process has adopted this one
            time.sleep(0.0005)
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
            os.close(stream)
        request: dict[str, Any] = json.loads(data)
        return request


def _become(request: dict[str, Any]) -> None:
    """Make this process like one that was started to run the program."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [str(Path(sys.argv[0]).parent), *filter(None, python_path)]


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    _import_all(sys.argv[2:])
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = _serve(requests)
        if request is None:
            return
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as at the start of a program: no traceback
        _become(request)
        requests.send(str(os.getpid()).encode())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except KeyboardInterrupt as error:
        if any(frame.name == "main" for frame in traceback.extract_tb(error.__traceback__)):
            raise
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # interrupted in pip's wrapper, before the program began
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    _main()
