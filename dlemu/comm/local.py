"""The ranks of one host, without MPI: Unix sockets between them, and the communicator that uses these.

A rank listens for its children in the tree and connects to its parent. Waits block in the kernel and cost no CPU (a
blocked MPI_Barrier burns a core per rank).

Addresses are abstract Unix sockets, which any user of the host can list (/proc/net/unix), bind and connect to; and what
ranks exchange is pickled. So each rank's address is a digest of the run's secret token and its rank, and both sides
check that the other runs under the same user (SO_PEERCRED) and knows the token; a silent caller delays nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import os
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from datagen.errors import DlemuError
from dlemu.comm.comm_base import PeerLostError
from dlemu.comm.process_control import after_fork_in_child
from dlemu.comm.tree import Frame, LocalTree, children_of, depth, height, parent_of

_HEADER = struct.Struct("<qq")
_TIMEVAL = struct.Struct("@ll")
_HELLO = struct.Struct("<32sqq")  # digest of the token, rank, number of ranks
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_CHUNK_BYTES = 1 << 20  # each receive has the whole timeout, so a long payload that makes progress never times out
_LONGEST_SECONDS = 1e8  # about three years: stands for "no deadline" and fits the kernel's jiffies
_SLACK_SECONDS = 0.1  # a socket timeout that is off by less is kept: setting it costs a system call per wait
_NOTICE_BYTES = 4000  # sent without waiting, so it must fit into what is free in a socket's buffer
_STRANGER_SECONDS = 1.0  # a caller that has sent nothing by then is not a rank of this run
_MOST_SILENT = 64  # accepted callers that have sent nothing yet; further ones wait in the kernel's queue meanwhile
_QUEUE = 4096  # the kernel's own limit (net.core.somaxconn): a flood of strangers must not keep this run's ranks out
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.001, 0.02  # ranks start within ms; then 50 calls/s
_LEVEL_SECONDS = 0.5  # each level of the tree waits this much longer than the next one nearer to the missing rank
_OTHER_NODES_LEVELS = 4  # levels to add for the time in which the node's rank 0 waits for other nodes

_CALLS = {
    Frame.MAXIMUM: "the barrier",
    Frame.GATHER: "the gather",
    Frame.BROADCAST: "the broadcast",
    Frame.LOST: "the notice of a lost rank",
    Frame.HELLO: "the start",
    Frame.PART: "a part of a message",
}


class LocalComm:
    """A `Comm` over the node-local tree; a single rank (`LocalComm()`) needs no socket and never waits.

    `gather` and `broadcast` return a rank's own value as the same object, other ranks' values as copies.
    """

    node = 0

    def __init__(self, tree: LocalTree | None = None) -> None:
        self._tree = tree or LocalTree(0, 1)
        self.rank = self.local_rank = self._tree.rank
        self.size = self.local_size = self._tree.size
        self.hosts: tuple[str, ...] = (socket.gethostname(),)

    def all_reduce_max(self, value_ns: int) -> int:
        return self._tree.broadcast_number(self._tree.reduce_max(value_ns))

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
        self._tree.announce_loss(f"rank {self.rank} failed with exit status {status}")
        self._tree.close()


def dump(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


class TreeSockets:
    """The sockets between the ranks of a host, made by the process that forks these, in the order of their numbers.

    A rank has its own ends alone: when it ends, its neighbours get an end of file. Nobody else can connect.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._above: dict[int, socket.socket] = {}
        """Rank that is not forked yet -> its end of the socket to its parent in the tree."""
        self._below: dict[int, socket.socket] = {}
        """Child of the rank that is forked next -> that rank's end."""

    def make_for(self, rank: int) -> None:
        """Make what the next rank needs, just before it is forked: few descriptors are open at a time."""
        for child in children_of(rank, self._size):
            self._below[child], self._above[child] = socket.socketpair()

    def drop_of(self, rank: int) -> None:
        """Close the ends of a rank that was forked."""
        if rank in self._above:
            self._above.pop(rank).close()
        self._close(self._below)

    def take(self, rank: int, timeout_seconds: float) -> LocalTree:
        """In the forked rank: return its place in the tree, and close all other ends.

        Its own forked children (a loader's workers) close the sockets at once, so its end is noticed if they live on.
        """
        tree = self.tree_of(rank, timeout_seconds)
        self.close()
        after_fork_in_child(tree.close)
        return tree

    def tree_of(self, rank: int, timeout_seconds: float) -> LocalTree:
        """Return the place of the next rank in the tree, with its ends."""
        tree = LocalTree(rank, self._size)
        above = self._above.pop(rank, None)
        if above is not None:
            # A parent's answer may have to wait for the whole tree twice, and for other nodes. Ranks further down wait
            # longer, so that the children of a missing rank are the first to report it.
            levels = 2 * height(0, self._size) + _OTHER_NODES_LEVELS + depth(rank)
            name = tree.name(parent_of(rank))
            tree.parent = Connection(above, name, timeout_seconds, levels * _LEVEL_SECONDS)
        for child, below in self._below.items():
            extra_seconds = height(child, self._size) * _LEVEL_SECONDS
            tree.children[child] = Connection(below, tree.name(child), timeout_seconds, extra_seconds)
        self._below = {}
        return tree

    def close(self) -> None:
        self._close(self._above)
        self._close(self._below)

    def _close(self, ends: dict[int, socket.socket]) -> None:
        while ends:
            ends.popitem()[1].close()


def connect_tree(
    token: str, local_rank: int, local_size: int, timeout_seconds: float, names: Sequence[int] | None = None
) -> LocalTree:
    """Return the connected tree of a node's ranks; `names` are the numbers by which messages name them.

    Forked children (a loader's workers) close the sockets at once, so a rank's end is noticed even if they live on.
    Raises PeerLostError, or DlemuError when another process has this rank's address.
    """
    tree = LocalTree(local_rank, local_size, names)
    if local_size == 1:
        return tree
    after_fork_in_child(tree.close)
    rendezvous = Rendezvous(token, local_rank, local_size, timeout_seconds, tree.name)
    try:
        with tree.collective():
            connect_neighbours(tree, rendezvous, local_rank, local_size, timeout_seconds)
    except BaseException:
        tree.close()
        raise
    finally:
        rendezvous.close()
    return tree


def connect_neighbours(
    tree: LocalTree, rendezvous: Rendezvous, local_rank: int, local_size: int, timeout_seconds: float
) -> None:
    def link(stream: socket.socket, rank: int, levels: int) -> Connection:
        return Connection(stream, tree.name(rank), timeout_seconds, levels * _LEVEL_SECONDS)

    if local_rank > 0:
        above = parent_of(local_rank)
        # A parent's answer may have to wait for the whole tree twice, and for other nodes. Ranks further down wait
        # longer, so that the children of a missing rank are the first to report it.
        levels = 2 * height(0, local_size) + _OTHER_NODES_LEVELS + depth(local_rank)
        tree.parent = link(rendezvous.call(above), above, levels)
    missing = set(children_of(local_rank, local_size))
    while missing:
        rank, stream = rendezvous.accept(missing)
        missing.remove(rank)
        child = tree.children[rank] = link(stream, rank, height(rank, local_size))
        child.send(Frame.HELLO, len(rendezvous.proof))
        child.send_bytes(rendezvous.proof)
    tree.children = dict(sorted(tree.children.items()))
    if tree.parent is not None:
        num_bytes = tree.parent.receive(Frame.HELLO)
        if tree.parent.receive_bytes(num_bytes, Frame.HELLO) != rendezvous.proof:
            raise DlemuError(f"{tree.name(0)} answered for another run: start the run again")


class Connection:
    """A `Link` over a stream socket. The kernel enforces the timeout (SO_RCVTIMEO): a wait is one system call,
    which a signal handler can interrupt with an exception.
    """

    def __init__(self, stream: socket.socket, peer: str, timeout_seconds: float, extra_seconds: float) -> None:
        """`extra_seconds` lets the rank nearest to the missing one report first: it knows which one is missing."""
        stream.settimeout(None)
        self._stream = stream
        self._owes_bytes = False
        """A frame was sent whose bytes were not, or not completely."""
        self._peer = peer
        self._extra_seconds = extra_seconds
        self._kernel_seconds = math.nan
        self.set_timeout(timeout_seconds)

    def set_timeout(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        whole = min(timeout_seconds + self._extra_seconds, _LONGEST_SECONDS)
        self._set_kernel_seconds(whole)
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(whole))

    def send(self, frame: Frame, number: int) -> None:
        self._owes_bytes = True
        self._send(_HEADER.pack(frame, number))
        self._owes_bytes = frame in (Frame.PART, Frame.HELLO)

    def send_bytes(self, data: bytes | bytearray | memoryview) -> None:
        self._send(data)
        self._owes_bytes = False

    def _send(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._stream.sendall(data)
        except BlockingIOError as error:
            raise PeerLostError(f"{self._peer} accepted no data for {self._timeout_seconds:g} s") from error
        except OSError as error:
            notice = self._pending_notice()
            raise (PeerLostError(notice) if notice else self._ended()) from error

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        started_seconds = time.monotonic() if started_seconds is None else started_seconds
        self._expect_by(started_seconds + self._timeout_seconds + self._extra_seconds)
        header = bytearray(_HEADER.size)
        self._fill(memoryview(header), frame)
        kind, number = _HEADER.unpack(header)
        if kind == frame:
            return int(number)
        if kind == Frame.LOST:
            raise PeerLostError(self._notice(number))
        raise self._out_of_step(kind, frame)

    def receive_bytes(self, num_bytes: int, frame: Frame) -> bytearray:
        data = bytearray(num_bytes)
        self._fill(memoryview(data), frame)
        return data

    def notify(self, message: str) -> None:
        if self._owes_bytes:
            return  # the peer would take the notice for those bytes; it will only see that the connection is closed
        text = message.encode()[:_NOTICE_BYTES]
        with contextlib.suppress(OSError):
            self._stream.send(_HEADER.pack(Frame.LOST, len(text)) + text, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._stream.close()

    def _fill(self, view: memoryview, frame: Frame) -> None:
        while view:
            try:
                count = self._stream.recv_into(view, min(len(view), _CHUNK_BYTES), socket.MSG_WAITALL)
            except BlockingIOError as error:
                message = f"{self._peer} did not arrive at {_CALLS[frame]} within {self._timeout_seconds:g} s"
                raise PeerLostError(message) from error
            except OSError as error:  # reset; between hosts also: unreachable, or keep-alive probes not answered
                raise self._ended() from error
            if count == 0:
                raise self._ended()
            view = view[count:]

    def _ended(self) -> PeerLostError:
        return PeerLostError(f"{self._peer} ended without a message")

    def _out_of_step(self, kind: int, frame: Frame) -> DlemuError:
        theirs = _CALLS[Frame(kind)] if kind in list(Frame) else f"a frame of unknown kind {kind}"
        return DlemuError(
            f"{self._peer} is at {theirs} where this rank is at {_CALLS[frame]}: all ranks must make the same "
            "calls in the same order"
        )

    def _notice(self, num_bytes: int) -> str:
        return self.receive_bytes(min(num_bytes, _NOTICE_BYTES), Frame.LOST).decode(errors="replace")

    def _pending_notice(self) -> str:
        try:
            kind, num_bytes = _HEADER.unpack(self._stream.recv(_HEADER.size, socket.MSG_DONTWAIT))
            return self._notice(num_bytes) if kind == Frame.LOST else ""
        except (DlemuError, OSError, struct.error):
            return ""

    def _expect_by(self, deadline_seconds: float) -> None:
        rest = min(deadline_seconds - time.monotonic(), _LONGEST_SECONDS)
        if not abs(rest - self._kernel_seconds) <= _SLACK_SECONDS:
            self._set_kernel_seconds(rest)

    def _set_kernel_seconds(self, seconds: float) -> None:
        self._kernel_seconds = max(seconds, 0.001)
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(self._kernel_seconds))


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return _TIMEVAL.pack(whole, int((seconds - whole) * 1e6))


class Rendezvous:
    """Finds one rank's neighbours in the tree. `name` returns how messages name a rank."""

    _whose_callers = "@dlemu addresses on this host (`ss -xp`)"
    _stranger_seconds = _STRANGER_SECONDS

    def __init__(self, token: str, rank: int, size: int, timeout_seconds: float, name: Callable[[int], str]) -> None:
        self._token, self._size, self._name = token, size, name
        self._timeout_seconds = timeout_seconds
        self._deadline_seconds = time.monotonic() + timeout_seconds
        self.proof = _digest("hello", token)
        """A digest that both sides send each other; only this run's ranks know it."""
        self._hello = _HELLO.pack(self.proof, rank, size)
        self._silent: dict[int, tuple[socket.socket, float]] = {}
        """Descriptor -> caller that has not identified itself yet, and until when it may (monotonic seconds)."""
        self._strangers = 0
        self._listener = self._listen(rank)

    def _listen(self, rank: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(address(self._token, rank))
            listener.listen(_QUEUE)
        except OSError as error:
            listener.close()
            message = (
                f"{self._name(rank)} cannot listen for its neighbours ({error}): was it started twice in this run?"
            )
            raise DlemuError(message) from error
        return listener

    def call(self, rank: int) -> socket.socket:
        """Connect to a rank, retrying while it does not listen yet; raises PeerLostError at the deadline."""
        pause = _FIRST_RETRY_SECONDS
        while (rest := self._rest()) > 0:
            stream = self._try_to_call(rank, min(rest, _LONGEST_SECONDS))
            if stream is not None:
                return stream
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_RETRY_SECONDS)
        raise self._missing([rank])

    def _try_to_call(self, rank: int, seconds: float) -> socket.socket | None:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A blocking connect waits its turn when the queue is full; with Python's own timeout it would fail at once.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))
            stream.connect(address(self._token, rank))
            if _peer_is_this_user(stream):
                stream.sendall(self._hello)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(0))
                return stream
        except OSError:
            pass  # not listening yet
        except BaseException:
            stream.close()
            raise
        stream.close()
        return None

    def accept(self, missing: Collection[int]) -> tuple[int, socket.socket]:
        """Wait until one of the `missing` ranks has connected; refuse all other callers."""
        while self._rest() > 0:
            for stream in self._who_spoke():
                rank = self._identify(stream)
                if rank in missing:
                    return rank, stream
                self._turn_away(stream)
        raise self._missing(missing)

    def close(self) -> None:
        self._listener.close()
        for stream, _ in self._silent.values():
            stream.close()

    def _who_spoke(self) -> Iterator[socket.socket]:
        """Wait up to `_STRANGER_SECONDS` for callers; yield those accepted ones that have sent something."""
        poll = select.poll()
        if len(self._silent) < _MOST_SILENT:
            poll.register(self._listener, select.POLLIN)
        for descriptor in self._silent:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(1000 * min(max(self._rest(), 0.001), _STRANGER_SECONDS)):
            if descriptor == self._listener.fileno():
                self._admit()
            else:
                yield self._silent.pop(descriptor)[0]
        now = time.monotonic()
        for descriptor in [descriptor for descriptor, (_, until) in self._silent.items() if until < now]:
            self._turn_away(self._silent.pop(descriptor)[0])

    def _admit(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            stream, _ = self._listener.accept()
            if self._may_speak(stream):
                self._silent[stream.fileno()] = (stream, time.monotonic() + self._stranger_seconds)
            else:
                self._turn_away(stream)

    def _may_speak(self, stream: socket.socket) -> bool:
        return _peer_is_this_user(stream)

    def _turn_away(self, stream: socket.socket) -> None:
        self._strangers += 1
        stream.close()

    def _identify(self, stream: socket.socket) -> int:
        try:
            hello = stream.recv(_HELLO.size, socket.MSG_DONTWAIT)  # it was sent in one call, so it arrives whole
        except OSError:
            return -1
        proof, rank, size = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (b"", -1, -1)
        ours = hmac.compare_digest(proof, self.proof) and size == self._size
        return int(rank) if ours else -1

    def _rest(self) -> float:
        return self._deadline_seconds - time.monotonic()

    def _missing(self, ranks: Collection[int]) -> PeerLostError:
        names = " and ".join(self._name(rank) for rank in ranks)
        message = f"{names} did not arrive within {self._timeout_seconds:g} s"
        if self._strangers:
            message += (
                f"; connections from processes outside this run were refused meanwhile ({self._strangers:,}): see who "
                f"connects to {self._whose_callers}"
            )
        return PeerLostError(message)


def address(token: str, rank: int) -> str:
    return f"\0dlemu.{_digest(f'address {rank}', token)[:16].hex()}"


def _digest(purpose: str, token: str) -> bytes:
    return hashlib.sha256(f"dlemu {purpose} {token}".encode()).digest()


def _peer_is_this_user(stream: socket.socket) -> bool:
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1]) == os.geteuid()
