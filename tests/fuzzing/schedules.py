"""Seeded schedules of the ranks' protocol: `Comm` over links without sockets, one rank running at a time.

Which rank runs next, how long a message takes, and which rank is killed, stands still or fails at which of its calls:
all is drawn from a seed, time is virtual, and a schedule that goes wrong is the same again.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest import mock

from datagen.errors import DlemuError
from dlemu.ranks.comm import Comm, Connection, Frame, HostRanks, PeerLostError

TIMEOUT_SECONDS = 60.0
LEVEL_SECONDS = 0.5
"""As in dlemu.ranks.comm: each level of the tree waits this much longer than the one nearer to the missing rank."""
MOST_DELAY_SECONDS = 0.01


class KilledError(BaseException):
    """The rank is gone: nothing of it runs any more."""


class HangError(Exception):
    """Every rank waits, and for nothing that time would bring."""


@dataclass
class Task:
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ready: Callable[[], bool] = lambda: True
    deadline: float = math.inf
    done: bool = False


class World:
    """Runs one task at a time, in an order by the seed, on a clock of its own."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.now = draw, 0.0
        self.tasks: list[Task] = []
        self.deliveries: list[float] = []
        self._control = threading.Semaphore(0)

    def run(self, works: list[Callable[[Task], None]]) -> None:
        threads = []
        for work in works:
            task = Task()
            self.tasks.append(task)
            threads.append(threading.Thread(target=self._live, args=(task, work), daemon=True))
        for thread in threads:
            thread.start()
        while waiting := [task for task in self.tasks if not task.done]:
            able = [task for task in waiting if task.ready() or self.now >= task.deadline]
            if not able:
                later = [moment for moment in self.deliveries if moment > self.now]
                moment = min([*(task.deadline for task in waiting), *later])
                if moment == math.inf:
                    raise HangError
                self.now, self.deliveries = moment, later
                continue
            self.draw.choice(able).turn.release()
            self._control.acquire()

    def wait(self, task: Task, ready: Callable[[], bool], deadline: float = math.inf) -> bool:
        """Let others run until the condition holds or the time is over; say whether it holds."""
        task.ready, task.deadline = ready, deadline
        self._control.release()
        task.turn.acquire()
        return ready()

    def _live(self, task: Task, work: Callable[[Task], None]) -> None:
        task.turn.acquire()
        try:
            work(task)
        finally:
            task.done = True
            self._control.release()


@dataclass
class Pipe:
    """One direction of a stream: what was sent, and when it arrives; `closed` by its writer."""

    items: deque[tuple[float, object]] = field(default_factory=deque)
    closed: bool = False


@dataclass
class Rank:
    """What happens to a rank: `fault` at its `at`th call of a link."""

    number: int
    fault: str = ""
    at: int = 0
    calls: int = 0
    dead: bool = False


class SimulatedLink(Connection):
    """One that behaves as a connected Unix socket between two processes does."""

    def __init__(self, world: World, task: Task, rank: Rank, peer: int, own: Pipe, theirs: Pipe, extra: float) -> None:
        self._world, self._task, self._rank, self._other = world, task, rank, peer
        self._own, self._theirs, self._extra = own, theirs, extra

    def send(self, frame: Frame, content: int | bytes | bytearray) -> None:
        self._meet()
        if isinstance(content, int):
            self._put((frame, content))
            return
        self._put((frame, len(content)))
        self._meet()
        self._put(bytes(content))

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        self._meet()
        started = self._world.now if started_seconds is None else started_seconds
        item = self._take(frame, started + TIMEOUT_SECONDS + self._extra)
        assert isinstance(item, tuple), f"bytes where rank {self._rank.number} waits for {frame.name}"
        kind, number = item
        if kind != frame:
            raise DlemuError(f"rank {self._other} is at {kind} where rank {self._rank.number} is at {frame}")
        return int(number)

    def receive_bytes(self, num_bytes: int, frame: Frame) -> bytearray:
        data = self._take(frame, self._world.now + TIMEOUT_SECONDS + self._extra)
        assert isinstance(data, bytes), f"{data} where rank {self._rank.number} waits for bytes of {frame.name}"
        assert len(data) == num_bytes
        return bytearray(data)

    def close(self) -> None:
        self._own.closed = True

    def _meet(self) -> None:
        """Let others run, and meet this rank's fate if its time has come."""
        self._rank.calls += 1
        if self._rank.fault and self._rank.calls == self._rank.at:
            if self._rank.fault == "error":
                raise DlemuError(f"rank {self._rank.number} found a damaged file")
            if self._rank.fault == "stop":
                self._world.wait(self._task, lambda: False, 100 * TIMEOUT_SECONDS)
            self._rank.dead = True
            raise KilledError
        self._world.wait(self._task, lambda: True)

    def _put(self, item: object) -> None:
        if self._theirs.closed:
            raise PeerLostError(f"rank {self._other} ended without a message")
        self._append(item)

    def _append(self, item: object) -> None:
        before = self._own.items[-1][0] if self._own.items else 0.0
        arrives = max(before, self._world.now + self._world.draw.random() * MOST_DELAY_SECONDS)
        self._own.items.append((arrives, item))
        self._world.deliveries.append(arrives)

    def _take(self, frame: Frame, deadline: float) -> object:
        theirs = self._theirs

        def ready() -> bool:
            return theirs.items[0][0] <= self._world.now if theirs.items else theirs.closed

        if not self._world.wait(self._task, ready, deadline):
            raise PeerLostError(f"rank {self._other} did not arrive at {frame.name} within {TIMEOUT_SECONDS:g} s")
        if not theirs.items:
            raise PeerLostError(f"rank {self._other} ended without a message")
        return theirs.items.popleft()[1]


@dataclass
class Outcome:
    results: list[object] = field(default_factory=list)
    message: str = ""


def schedule(draw: random.Random) -> None:
    """Play one schedule; raises AssertionError or HangError for what must not be."""
    size = draw.randint(2, 18)
    calls = [draw.choice(("maximum", "gather", "broadcast")) for _ in range(draw.randint(1, 6))]
    ranks = [Rank(number) for number in range(size)]
    victim = draw.choice(ranks)
    victim.fault, victim.at = draw.choice(("", "kill", "stop", "error")), draw.randint(1, 4 * len(calls))
    world, outcomes = World(draw), [Outcome() for _ in ranks]
    edges = [(child, (child - 1) // 2) for child in range(1, size)]
    pipes = {edge: Pipe() for below, above in edges for edge in ((below, above), (above, below))}
    errors: list[Exception] = []
    first: list[str] = []
    """What ranks raised, in order of time."""

    def work_of(rank: Rank) -> Callable[[Task], None]:
        def work(task: Task) -> None:
            comm = Comm(HostRanks(members=range(size), size=size), rank.number)
            levels, depth = size.bit_length(), (rank.number + 1).bit_length() - 1

            def link(peer: int, levels: int) -> SimulatedLink:
                own, theirs = pipes[rank.number, peer], pipes[peer, rank.number]
                return SimulatedLink(world, task, rank, peer, own, theirs, levels * LEVEL_SECONDS)

            if rank.number:
                comm.parent = link((rank.number - 1) // 2, 2 * levels + 4 + depth)
            below = [child for child in range(1, size) if (child - 1) // 2 == rank.number]
            comm.children = [link(child, levels - depth - 1) for child in below]
            try:
                for number, call in enumerate(calls):
                    outcomes[rank.number].results.append(_call(comm, call, number, rank.number))
            except KilledError:
                pass
            except DlemuError as error:
                outcomes[rank.number].message = str(error)
                first.append(str(error))
            except Exception as error:
                errors.append(error)
            comm.close()

        return work

    with mock.patch("dlemu.ranks.comm.monotonic", side_effect=lambda: world.now):
        world.run([work_of(rank) for rank in ranks])
    if errors:
        raise errors[0]
    _check(size, calls, victim, outcomes, first)
    assert world.now <= 101 * TIMEOUT_SECONDS if victim.dead and victim.fault == "stop" else TIMEOUT_SECONDS + 60


def _call(comm: Comm, call: str, number: int, rank: int) -> object:
    if call == "maximum":
        return comm.all_reduce_max(1000 * number + rank)
    return comm.gather(f"{number} {rank}") if call == "gather" else comm.broadcast(f"{number}")


def _check(size: int, calls: list[str], victim: Rank, outcomes: list[Outcome], first: list[str]) -> None:
    happened = victim.dead or (victim.fault == "error" and victim.calls >= victim.at)
    for rank, outcome in enumerate(outcomes):
        for number, result in enumerate(outcome.results):
            wanted: object = 1000 * number + size - 1
            if calls[number] == "gather":
                wanted = [f"{number} {other}" for other in range(size)] if rank == 0 else None
            elif calls[number] == "broadcast":
                wanted = f"{number}"
            assert result == wanted, "what a call returned is right whatever happened later"
        if rank == victim.number and happened:
            continue
        assert (len(outcome.results) == len(calls)) == (outcome.message == "")
        assert happened or not outcome.message
    if first:
        assert f"rank {victim.number} " in first[0], f"{first[0]}: {victim} is the cause"
