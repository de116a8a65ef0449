"""Another process of the host, of another user or (in a container beside) of the same, that wants a run's end."""

from __future__ import annotations

import os
import pickle
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from datagen.errors import DlemuError
from dlemu.comm import LocalComm, PeerLostError
from dlemu.comm.comm_base import on_one_host
from dlemu.comm.local import address, connect_tree
from dlemu.comm.mpi import Leaders
from tests.comm.many_ranks import PATIENCE_SECONDS, wait_until
from tests.comm.neighbour import NOBODY, Neighbour, derived, neighbour

TOKEN = secrets.token_hex(16)


@pytest.fixture(params=["another user", "this user"])
def beside(request: pytest.FixtureRequest) -> Iterator[Neighbour]:
    if request.param == "this user":
        user = os.geteuid()
    elif os.geteuid() == 0:
        user = NOBODY
    else:
        pytest.skip("only root can start a process of another user")
    with neighbour(user, lambda name: name.startswith(address(TOKEN, 0)[1:33])) as one:
        yield one


def test_ranks_meet_although_a_neighbour_takes_and_calls_every_address_it_knows(beside: Neighbour) -> None:
    size = 6

    def work(rank: int) -> tuple[int, list[int] | None]:
        comm = LocalComm(connect_tree(TOKEN, rank, size, PATIENCE_SECONDS))
        try:
            return comm.all_reduce_max(rank), comm.gather(rank)
        finally:
            comm.close()

    with ThreadPoolExecutor(size) as pool:
        first = pool.submit(work, 0)
        assert wait_until(lambda: beside.taken > 0 and beside.calls > 200)  # it knows rank 0 before the others come
        others = [pool.submit(work, rank) for rank in range(1, size)]
        assert [rank.result() for rank in [first, *others]] == [
            (size - 1, [*range(size)]),
            *[(size - 1, None)] * (size - 1),
        ]


def test_a_rank_that_is_missed_among_strangers_is_named_in_time(beside: Neighbour) -> None:
    started_seconds = time.monotonic()
    with pytest.raises(PeerLostError, match=r"^rank 1 did not arrive within 2 s; connections .* were refused"):
        LocalComm(connect_tree(TOKEN, 0, 2, 2.0))
    assert time.monotonic() - started_seconds < 60, "whoever goes on calling does not hold up the end"


def test_no_address_of_a_run_follows_from_another() -> None:
    token = secrets.token_hex(16)
    addresses = [address(token, rank)[1:] for rank in range(20)]
    for one in addresses:
        assert not set(derived(one)) & set(addresses) - {one}
    assert all(token not in one for one in addresses)


@pytest.mark.parametrize(
    ("environment", "alone"),
    [
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, True),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, False),
        ({"PMI_SIZE": "4"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, True),
        ({"PMI_SIZE": "4", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "4"}, True),
        ({"PMI_SIZE": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "4"}, False),
    ],
)
def test_mpi_is_kept_on_the_loopback_only_where_all_ranks_share_a_host(
    environment: dict[str, str], alone: bool
) -> None:
    assert on_one_host(environment) is alone


class Done:
    def Test(self) -> bool:
        return True


class Wire:
    """MPI and a communicator of two nodes whose messages lie in a list, where anybody may put some."""

    Exception = OSError
    BYTE = None

    def __init__(self, node: int, messages: list[bytes]) -> None:
        self._node, self.messages = node, messages

    def Get_rank(self) -> int:
        return self._node

    def Get_size(self) -> int:
        return 2

    def Isend(self, message: Any, dest: int, tag: int) -> Done:
        self.messages.append(bytes(message[0] if isinstance(message, list) else message))
        return Done()

    def Irecv(self, buffer: Any, source: int, tag: int) -> Done:
        memoryview(buffer[0] if isinstance(buffer, list) else buffer).cast("B")[:] = self.messages.pop(0)
        return Done()

    def Ibcast(self, buffer: Any, root: int) -> Done:
        return self.Isend(buffer, 0, 0) if self._node == root else self.Irecv(buffer, 0, 0)


def _between(node: int, messages: list[bytes]) -> Leaders:
    return Leaders(Wire, Wire(node, messages), b"secret of the run", 1.0)


def _forged_gather(messages: list[bytes]) -> None:
    evil = pickle.dumps("not from this run")
    messages += [struct.pack("<q", 1), struct.pack("<4q", 1, len(evil), 0, 0), evil]


def _with_another_secret(messages: list[bytes]) -> None:
    Leaders(Wire, Wire(1, messages), b"secret of another run", 1.0).gather([(1, b"theirs")])


def _under_another_rank(messages: list[bytes]) -> None:
    _between(1, messages).gather([(1, b"mine")])
    messages[1] = struct.pack("<q", 5) + messages[1][8:]


def _changed(messages: list[bytes]) -> None:
    _between(1, messages).gather([(1, b"mine")])
    messages[2] = b"mime"


@pytest.mark.parametrize("forge", [_forged_gather, _with_another_secret, _under_another_rank, _changed])
def test_what_no_rank_of_this_run_sent_over_mpi_is_never_unpickled(forge: Callable[[list[bytes]], None]) -> None:
    messages: list[bytes] = []
    forge(messages)
    with pytest.raises(DlemuError, match=r"^a message over MPI in place of one from host 1 is not from this run"):
        _between(0, messages).gather([(0, b"own")])


def test_what_was_sent_before_is_not_taken_again() -> None:
    messages: list[bytes] = []
    _between(1, messages).gather([(1, b"mine")])
    receiver = _between(0, messages)
    recorded = list(messages)
    assert receiver.gather([(0, b"own")]) == {0: b"own", 1: b"mine"}
    messages += recorded
    with pytest.raises(DlemuError, match="is not from this run"):
        receiver.gather([(0, b"own")])


def test_a_forged_broadcast_is_refused_and_a_true_one_is_not() -> None:
    messages: list[bytes] = []
    _between(0, messages).broadcast(b"for all")
    true = list(messages)
    assert _between(1, messages).broadcast(b"") == b"for all"
    messages += [true[0], b"for one"]
    with pytest.raises(DlemuError, match="is not from this run"):
        _between(1, messages).broadcast(b"")
