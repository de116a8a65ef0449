"""How the ranks of a node find each other: a rank listens for its children in the tree and calls its parent.

Addresses are abstract Unix sockets (`\\0dlemu.NAME.RANK`), so nothing is left in the file system. Anyone on the host
may call such an address, and what ranks exchange is pickled: both sides therefore check that the other runs under the
same user (SO_PEERCRED) and knows the run's token, of which the address shows only a digest.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable, Collection

from datagen.errors import DlemuError
from dlemu.comm.comm_base import PeerLostError

_HELLO = struct.Struct("<32sqq")  # digest of the token, rank, number of ranks
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_STRANGER_SECONDS = 1.0  # a caller that says nothing is not one of ours, and must not hold up those who are
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.001, 0.02


class Rendezvous:
    """One rank's part in finding its neighbours. `name` says how messages call a rank."""

    def __init__(self, token: str, rank: int, size: int, timeout_seconds: float, name: Callable[[int], str]) -> None:
        self._token, self._size, self._name = token, size, name
        self._timeout_seconds = timeout_seconds
        self._deadline_seconds = time.monotonic() + timeout_seconds
        self.proof = _digest("hello", token)
        """What both sides show each other; only this run's ranks know it."""
        self._hello = _HELLO.pack(self.proof, rank, size)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(address(token, rank))
            self._listener.listen(16)
        except OSError as error:
            self._listener.close()
            message = f"{name(rank)} cannot open its meeting point ({error}): was it started twice in this run?"
            raise DlemuError(message) from error

    def call(self, rank: int) -> socket.socket:
        """Connect to a rank, which may not listen yet; it answers when it has time to."""
        pause = _FIRST_RETRY_SECONDS
        while self._rest() > 0:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                stream.settimeout(max(self._rest(), 0.001))
                stream.connect(address(self._token, rank))
                if _peer_is_this_user(stream):
                    stream.sendall(self._hello)
                    return stream
            except OSError:
                pass  # not listening yet, or its queue is full
            except BaseException:
                stream.close()
                raise
            stream.close()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_RETRY_SECONDS)
        raise self._stayed_away([rank])

    def accept(self, missing: Collection[int]) -> tuple[int, socket.socket]:
        """Wait until one of the `missing` ranks has called; strangers are turned away."""
        while True:
            try:
                self._listener.settimeout(max(self._rest(), 0.001))
                stream, _ = self._listener.accept()
            except TimeoutError as error:
                raise self._stayed_away(missing) from error
            rank = self._identify(stream)
            if rank in missing:
                return rank, stream
            stream.close()

    def close(self) -> None:
        self._listener.close()

    def _identify(self, stream: socket.socket) -> int:
        """Return the rank of a caller, -1 for a stranger."""
        try:
            if not _peer_is_this_user(stream):
                return -1
            stream.settimeout(_STRANGER_SECONDS)
            hello = stream.recv(_HELLO.size, socket.MSG_WAITALL)
        except OSError:
            return -1
        except BaseException:
            stream.close()
            raise
        proof, rank, size = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (b"", -1, -1)
        return int(rank) if proof == self.proof and size == self._size else -1

    def _rest(self) -> float:
        return self._deadline_seconds - time.monotonic()

    def _stayed_away(self, ranks: Collection[int]) -> PeerLostError:
        names = " and ".join(self._name(rank) for rank in ranks)
        return PeerLostError(f"{names} did not arrive within {self._timeout_seconds:g} s")


def address(token: str, rank: int) -> str:
    """Return the abstract socket address at which a rank waits for its callers."""
    return f"\0dlemu.{_digest('address', token)[:16].hex()}.{rank}"


def _digest(purpose: str, token: str) -> bytes:
    return hashlib.sha256(f"dlemu {purpose} {token}".encode()).digest()


def _peer_is_this_user(stream: socket.socket) -> bool:
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1]) == os.geteuid()
