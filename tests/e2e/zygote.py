"""A process that has imported dlemu and forks whoever is to run a command: half a command's time is its imports.

A command that starts so is a process of its own in a session of its own, with its own folder, environment and streams,
as one that the shell starts; only what Python and the libraries read while they start is the zygote's. So commands
whose environment says anything about that (`KEPT`) are started by a shell's means.
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
"""What a variable's name begins with that Python, a library or dlemu reads while it starts; folders of PYTHONPATH can
be added later, where they hold nothing that is imported by then."""
_APART = {"dlemu.contrib.record.recorder"}
"""They do something when they are imported, or import what dlemu itself imports only when it has to."""
_LOADERS_AND_TESTS = re.compile(r"^dlemu\.(loaders|contrib\.dali)\.|\.tests\b")
_FRAMEWORKS = {"torch", "tensorflow", "mpi4py", "h5py"}
_MOST_BYTES = 1 << 20


def _kept(environment: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environment.items() if name.startswith(KEPT)}
    return {name: value for name, value in kept.items() if name != "PYTHONPATH"}


class Zygote:
    """Starts commands; with torch imported, those that read by its loader: importing it takes two CPU seconds."""

    def __init__(self, *, torch: bool) -> None:
        self._kept = _kept(dict(os.environ))
        self._requests, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_at_a_time = threading.Lock()
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.zygote", str(there.fileno()), *(["torch"] if torch else [])],
                pass_fds=[there.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End it; commands that run go on."""
        self._requests.close()
        self.process.wait()

    def can_run(self, environment: dict[str, str]) -> bool:
        """Say whether a command of this environment would start as by a shell."""
        return self.process.poll() is None and _kept(environment) == self._kept

    def fork(self, request: dict[str, object], streams: list[int]) -> int:
        """Have it fork a command that then becomes a child of this process; return its process id."""
        with self._one_at_a_time:
            before = adopt_orphans(True)
            socket.send_fds(self._requests, [json.dumps(request).encode()], streams)
            process = self._requests.recv(64)
            adopt_orphans(before)
        assert process, "the zygote is gone"
        return int(process)


class Forked(subprocess.Popen[str]):
    """A command that a zygote forked, in a session of its own, with pipes for its output."""

    def __init__(self, zygote: Zygote, words: list[str], cwd: str, environment: dict[str, str]) -> None:
        self._zygote = zygote
        super().__init__(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace", cwd=cwd, env=environment
        )

    def _execute_child(self, *given: Any) -> None:
        names = inspect.signature(subprocess.Popen._execute_child).parameters  # type: ignore[attr-defined]
        known = dict(zip(list(names)[1:], given, strict=True))
        streams = [known["c2pwrite"], known["errwrite"]]
        request = {"words": known["args"], "cwd": known["cwd"], "environment": known["env"]}
        self.pid = self._zygote.fork(request, streams)
        self._child_created = True
        for stream in streams:
            os.close(stream)


@functools.cache
def zygote(*, torch: bool) -> Zygote:
    """Return this process's zygote with or without torch, which starts when it is first wanted."""
    started = Zygote(torch=torch)
    zygote_processes.add(started.process.pid)
    return started


zygote_processes: set[int] = set()
"""The process ids of this process's zygotes."""


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


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return it in the process that is to run it, None once nobody wants any more."""
    while True:
        data, streams, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
        if not data:
            return None
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            for stream in streams:
                os.close(stream)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:  # then the tests' process adopts it
            time.sleep(0.0005)
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
            os.close(stream)
        found: dict[str, Any] = json.loads(data)
        return found


def _become(request: dict[str, Any]) -> None:
    """Be as a process that was started to run a program."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["words"]
    further = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [str(Path(sys.argv[0]).parent), *filter(None, further)]


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of the tests is theirs
    _import_all(sys.argv[2:])
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = _serve(requests)
        if request is None:
            return
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in a program that has only begun: no traceback
        _become(request)
        requests.send(str(os.getpid()).encode())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except KeyboardInterrupt as error:
        if any(frame.name == "main" for frame in traceback.extract_tb(error.__traceback__)):
            raise
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # in pip's lines around the program, which has not begun
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    _main()
