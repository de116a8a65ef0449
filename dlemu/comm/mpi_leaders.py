"""The leaders of several hosts, joined by MPI: every call is a nonblocking one, as MPI's own waits spin on a core."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dlemu.comm.comm_base import PeerLostError
from dlemu.comm.failure import Failure
from dlemu.comm.leaders import Bytes, Leaders, Numbers

_PING, _FAILURE, _CLEAN = 1, 2, 3
"""Tags of messages: comparing clocks; why a host has failed; a host that has cleaned up after a failure."""
_CLEAN_SECONDS = 10.0  # for the other hosts to remove unfinished files, before MPI kills them
_SAVING_SECONDS = 120.0  # for node 0 to save what was measured and end all, before another host does


class MpiLeaders(Leaders):
    """The leaders in a communicator of their own."""

    def __init__(self, mpi: Any, comm: Any, secret: bytes, timeout_seconds: float) -> None:
        """`mpi` is the module mpi4py.MPI, `comm` a communicator of the leaders alone; `secret` is the run's."""
        super().__init__(comm.Get_rank(), comm.Get_size(), secret, timeout_seconds)
        self._mpi, self._comm = mpi, comm

    def leave(self, failure: Failure) -> None:
        text = np.frombuffer(failure.to_json().encode(), np.uint8)
        for node in range(self.nodes):
            if node != self.node:
                self._unfinished.append((self._comm.Isend(text, dest=node, tag=_FAILURE), text))

    def wait_for_end(self) -> None:
        """After a failure: node 0 waits until the others have cleaned up, which wait until it ends all processes."""
        with contextlib.suppress(self._mpi.Exception):
            if self.node != 0:
                self._comm.Isend(np.zeros(1, np.uint8), dest=0, tag=_CLEAN)
                time.sleep(_SAVING_SECONDS)
                return
            clean = [self._comm.Irecv(np.zeros(1, np.uint8), source=node, tag=_CLEAN) for node in range(1, self.nodes)]
            deadline_seconds = time.monotonic() + _CLEAN_SECONDS
            while not self._mpi.Request.Testall(clean) and time.monotonic() < deadline_seconds:
                time.sleep(0.01)

    def _read_failure(self) -> str:
        status = self._mpi.Status()
        if not self._comm.Iprobe(tag=_FAILURE, status=status):
            return ""
        text = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
        self._comm.Recv(text, source=status.Get_source(), tag=_FAILURE)
        return text.tobytes().decode()

    def _reduce(self, numbers: Numbers, more_seconds: float) -> None:
        own = numbers.copy()
        self._complete(lambda: self._comm.Iallreduce(own, numbers, op=self._mpi.MAX), own, more_seconds=more_seconds)

    def _spread(self, data: Bytes) -> None:
        self._complete(lambda: self._comm.Ibcast(data, root=0), data)

    def _collect(self, data: Bytes) -> Sequence[Bytes]:
        received = np.empty((self.nodes, data.size) if self.node == 0 else (0, 0), np.uint8)
        self._complete(lambda: self._comm.Igather(data, received, root=0), (data, received))
        return list(received)

    def _ping_all(self, offsets_ns: Numbers) -> None:
        self.ping_all(offsets_ns)

    def _send(self, node: int, number: Numbers) -> None:
        self._complete(lambda: self._comm.Isend(number, dest=node, tag=_PING), number, spin=True)

    def _receive(self, node: int, number: Numbers) -> None:
        self._complete(lambda: self._comm.Irecv(number, source=node, tag=_PING), number, spin=True)

    def _complete(
        self, begin: Callable[[], Any], buffers: object, *, more_seconds: float = 0.0, spin: bool = False
    ) -> None:
        try:
            request = begin()
            self._wait(request.Test, (request, buffers), more_seconds=more_seconds, spin=spin)
        except self._mpi.Exception as error:
            raise PeerLostError(f"MPI lost contact with {self.others}: {error}") from error
