"""The ranks of one host, without MPI."""

from __future__ import annotations

import pickle
import socket
from typing import Any

from dlemu.comm.tree import LocalTree


class LocalComm:
    """A `Comm` over the node-local tree; alone (`LocalComm()`) it needs no socket and never waits.

    A rank gets its own value back from `gather` and `broadcast` as it is, others get copies.
    """

    node = 0

    def __init__(self, rank: int = 0, size: int = 1, *, token: str = "", timeout_seconds: float = 600.0) -> None:
        """Meet the other ranks of this host; `token` is the run's secret, the same on all of them."""
        self.rank = self.local_rank = rank
        self.size = self.local_size = size
        self.hosts: tuple[str, ...] = (socket.gethostname(),)
        self._tree = LocalTree(token, rank, size, timeout_seconds)

    def all_reduce_max(self, value_ns: int) -> int:
        return self._tree.fall(self._tree.rise(value_ns))

    def synchronise_clocks(self) -> tuple[int, ...]:
        return (0,)

    def gather(self, value: Any) -> list[Any] | None:
        parts = self._tree.gather(b"" if self.rank == 0 else dump(value))
        return None if parts is None else [value, *map(pickle.loads, parts[1:])]

    def broadcast(self, value: Any) -> Any:
        payload = self._tree.broadcast(dump(value) if self.rank == 0 and self.size > 1 else b"")
        return value if self.rank == 0 else pickle.loads(payload)

    def set_timeout(self, timeout_seconds: float) -> None:
        self._tree.set_timeout(timeout_seconds)

    def close(self) -> None:
        self._tree.close()

    def abort(self, status: int) -> None:
        self._tree.announce(f"rank {self.rank} failed with exit status {status}")
        self._tree.close()


def dump(value: Any) -> bytes:
    """Pickle a value for another rank of the same run."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
