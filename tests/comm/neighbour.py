"""A process beside a run that wants its end: it takes every address it can see or derive, and calls all of them.

`python -m tests.comm.neighbour USER` is one for all of dlemu's in its network namespace.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

NOBODY = 65534
_COUNTERS = struct.Struct("@qq")
_GARBAGE = (b"", b"\0" * 48, b"\xff" * 200_000, b"GET / HTTP/1.1\r\n\r\n", struct.pack("<qq", 3, 1 << 62))
_MOST_OPEN, _MOST_HELD = 400, 400  # below the usual limit on open files


class Neighbour:
    """Its counters, as it goes on. It spares addresses that are not `wanted`: other tests may run beside."""

    def __init__(self, wanted: Callable[[str], bool] = lambda name: True) -> None:
        self._wanted = wanted
        self._shared = mmap.mmap(-1, _COUNTERS.size)

    @property
    def calls(self) -> int:
        """How many times it reached an address of dlemu's."""
        return int(_COUNTERS.unpack(self._shared[:])[0])

    @property
    def taken(self) -> int:
        """How many addresses it took that it derived from those seen."""
        return int(_COUNTERS.unpack(self._shared[:])[1])

    def run(self, user: int) -> None:
        """Go on for ever under a user of this host."""
        if user != os.geteuid():
            os.setgid(user)
            os.setuid(user)
        held: dict[str, socket.socket] = {}
        open_calls: list[socket.socket] = []
        calls = 0
        while True:
            names = {name for name in seen() - held.keys() if self._wanted(name)}
            guesses = {guess for name in names for guess in derived(name)} - held.keys()
            for guess in sorted(guesses)[: _MOST_HELD - len(held)]:
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                with contextlib.suppress(OSError):
                    listener.bind(f"\0{guess}")
                    listener.listen(100)
                    held[guess] = listener
            for name in sorted(names) * 20:
                call = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                with contextlib.suppress(OSError):
                    call.connect(f"\0{name}")
                    calls += 1
                    call.send(_GARBAGE[calls % len(_GARBAGE)])
                open_calls.append(call)
            while len(open_calls) > _MOST_OPEN:
                open_calls.pop(0).close()
            self._shared[:] = _COUNTERS.pack(calls, len(held))
            if not names:
                time.sleep(0.002)


def seen() -> set[str]:
    """Return the abstract addresses of dlemu's that any user of the host sees."""
    with open("/proc/net/unix", errors="replace") as lines:
        return {line.split()[-1][1:] for line in lines if " @dlemu" in line}


def derived(name: str) -> Iterator[str]:
    """Yield what the addresses of other ranks may be: the numbers in it counted on, and numbers behind it."""
    for number in range(20):
        yield f"{name}.{number}"
        yield re.sub(r"\.\d+$", f".{number}", name)
        yield re.sub(r"[0-9a-f]$", f"{number:x}", name)


@contextlib.contextmanager
def neighbour(user: int, wanted: Callable[[str], bool]) -> Iterator[Neighbour]:
    """Run one meanwhile."""
    one = Neighbour(wanted)
    process = os.fork()
    if process == 0:
        try:
            one.run(user)
        finally:
            os._exit(1)
    try:
        yield one
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


if __name__ == "__main__":
    Neighbour().run(int(sys.argv[1]))
