"""Leaders of hosts over TCP, here threads of one host, and strangers that call them."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from datagen.errors import DlemuError, UserError
from dlemu.comm import PeerLostError, detect_launcher
from dlemu.comm.comm_base import launcher_rank
from dlemu.comm.launched_comm import Seal
from dlemu.comm.store import Place, TcpLeaders, listen

PATIENCE_SECONDS = 120.0
TORCHRUN = {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "RANK": "20", "WORLD_SIZE": "36"}


def together(
    nodes: int, work: Callable[[TcpLeaders], Any], keys: Sequence[bytes] = (), seconds: float = PATIENCE_SECONDS
) -> list[Any]:
    """Return what each of several leaders returns, or the error that it raises."""
    listening = [listen() for _ in range(nodes)]
    places = [
        [("127.0.0.1", 9), ("127.0.0.1", one.getsockname()[1])] for one in listening
    ]  # at the first nobody listens
    secret = secrets.token_bytes(32)

    def lead(node: int) -> Any:
        try:
            key = keys[node] if keys else secret
            leaders = TcpLeaders(listening[node], places, node, [f"host {n}" for n in range(nodes)], key, seconds)
            with contextlib.closing(leaders):
                return work(leaders)
        except DlemuError as error:
            return error

    with ThreadPoolExecutor(nodes) as pool:
        return list(pool.map(lead, range(nodes)))


@pytest.mark.parametrize("nodes", [2, 3, 6])
def test_every_call_reaches_every_host(nodes: int) -> None:
    def work(leaders: TcpLeaders) -> Any:
        highest = leaders.all_reduce_max(leaders.node)
        payload = bytes([leaders.node]) * 3_000_000
        parts = leaders.gather([(10 * leaders.node + rank, payload) for rank in (0, 1)])
        echo = leaders.broadcast(b"".join(bytes(parts[key][:1]) for key in sorted(parts)))
        return highest, len(parts), bytes(echo), leaders.all_reduce_max(0, last=True)

    numbers = bytes(node for node in range(nodes) for _ in (0, 1))
    assert together(nodes, work) == [(nodes - 1, 2 * nodes * (node == 0), numbers, 0) for node in range(nodes)]


def test_clocks_of_one_host_agree() -> None:
    offsets = together(4, TcpLeaders.clock_offsets)
    assert len(set(offsets)) == 1
    assert len(offsets[0]) == 4
    assert all(abs(offset_ns) < 10**9 for offset_ns in offsets[0]), "threads of one host have one clock"


def test_a_caller_without_the_secret_is_turned_away_and_the_missing_host_named() -> None:
    ends = together(2, lambda leaders: leaders.node, [b"right" * 6, b"wrong" * 6], seconds=1.0)
    assert isinstance(ends[0], PeerLostError)
    assert "host 1 did not arrive" in str(ends[0])
    assert "were refused" in str(ends[0])
    assert isinstance(ends[1], DlemuError)


def test_strangers_that_say_nothing_or_garbage_hold_nobody_up() -> None:
    listening = [listen(), listen()]
    places = [[("127.0.0.1", one.getsockname()[1])] for one in listening]
    strangers = [socket.create_connection(("127.0.0.1", listening[0].getsockname()[1])) for _ in range(20)]
    for stranger in strangers[::2]:
        stranger.sendall(b"x" * 100)
    with ThreadPoolExecutor(2) as pool:
        leaders = pool.map(
            lambda node: TcpLeaders(listening[node], places, node, ["a", "b"], b"k" * 32, PATIENCE_SECONDS), (0, 1)
        )
        nodes = []
        for one in leaders:
            nodes.append(one.node)
            one.close()
    assert nodes == [0, 1]
    for stranger in strangers:
        stranger.close()


def test_a_changed_or_an_old_message_is_refused() -> None:
    def change(leaders: TcpLeaders) -> Any:
        if leaders.node == 1:
            seal = leaders._sealed
            leaders._sealed = lambda place, payload: seal(place, payload)[:-1] + b"?"  # type: ignore[method-assign]
        return leaders.gather([(leaders.node, b"payload")])

    ends = together(2, change)
    assert "not from this run" in str(ends[0])
    seal = Seal(b"secret", "TCP")
    seal.next_call()
    old = seal.code(1, b"payload")
    seal.next_call()
    with pytest.raises(DlemuError, match="not from this run"):
        seal.check(1, b"payload", old, "host b")


def test_a_host_that_leaves_says_why_to_all() -> None:
    def work(leaders: TcpLeaders) -> Any:
        if leaders.node == 3:
            leaders.leave("rank 7 failed: the disk is full")
            return None
        return leaders.all_reduce_max(0)

    ends = together(4, work)
    assert [str(end) for end in ends[:3]] == ["rank 7 failed: the disk is full"] * 3


@pytest.mark.parametrize(
    ("more", "launcher"),
    [
        ({}, "store"),
        ({"WORLD_SIZE": "1", "RANK": "0"}, "none"),
        ({"MASTER_ADDR": ""}, "none"),
        ({"SLURM_PROCID": "20", "SLURM_STEP_NUM_TASKS": "36"}, "store"),  # srun without PMI, with exported variables
        ({"PMI_RANK": "20", "PMI_SIZE": "36"}, "mpi"),  # a script under mpirun that exports them too
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, "store"),  # torchrun under mpirun
        ({"PMIX_RANK": "20"}, "mpi"),
    ],
)
def test_torchruns_variables_are_a_launcher(more: dict[str, str], launcher: str) -> None:
    assert detect_launcher(TORCHRUN | more) == launcher
    assert launcher_rank(TORCHRUN) == 20


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "18"}, (2, 18, 18)),
        ({"LOCAL_RANK": "2", "SLURM_STEP_TASKS_PER_NODE": "18(x2)"}, (2, 18, 18)),
        ({}, (0, 1, 20)),  # one process a host
    ],
)
def test_a_rank_knows_its_host(more: dict[str, str], place: tuple[int, int, int]) -> None:
    one = Place.of(TORCHRUN | more)
    assert (one.local_rank, one.local_size, one.first) == place


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"LOCAL_RANK": "2"}, "export the number of processes on this host as LOCAL_WORLD_SIZE"),
        ({"LOCAL_RANK": "21", "LOCAL_WORLD_SIZE": "36"}, "contradict each other"),
        ({"RANK": "36", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "contradict each other"),
        ({"WORLD_SIZE": "many"}, "are not numbers"),
    ],
)
def test_variables_without_sense_are_refused(more: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Place.of(TORCHRUN | more)
