"""The leaders of several hosts, joined by MPI: every call is a nonblocking one, as MPI's own waits spin on a core."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

from dlemu.ranks.failure import Failure
from dlemu.ranks.leaders import Bytes, Leaders, Numbers, Test

_FAILURE, _CLEAN = 1, 2
"""Tags of messages: why a host has failed; a host that has cleaned up after a failure."""
_CLEAN_SECONDS = 10.0  # for the other hosts to remove unfinished files, before MPI kills them
_SAVING_SECONDS = 120.0  # for node 0 to save what was measured and end all, before another host does


class MpiLeaders(Leaders):
    """The leaders in a communicator of their own."""

    def __init__(self, mpi: Any, comm: Any, timeout_seconds: float) -> None:
        """`mpi` is the module mpi4py.MPI, `comm` a communicator of the leaders alone."""
        super().__init__(comm.Get_rank(), comm.Get_size(), timeout_seconds)
        self._mpi, self._comm, self.errors = mpi, comm, mpi.Exception

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

    def _begin_maximum(self, numbers: Numbers, highest: Numbers) -> Test:
        return self._comm.Iallreduce(numbers, highest, op=self._mpi.MAX).Test  # type: ignore[no-any-return]

    def _begin_broadcast(self, data: Bytes) -> Test:
        return self._comm.Ibcast(data, root=0).Test  # type: ignore[no-any-return]

    def _begin_gather(self, data: Bytes, received: Bytes) -> Test:
        return self._comm.Igather(data, received, root=0).Test  # type: ignore[no-any-return]
