"""A crew: worker processes, forked from this one, that share a task, begin it together and end together.

They share no lock, so a killed worker does not block others.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from datagen.errors import DlemuError, UserError
from dlemu.comm import Interrupted, die_with_parent, first_failure
from dlemu.comm.failure import Failure, Role
from dlemu.comm.launch import ReportChannel, run_processes
from dlemu.comm.process_control import name_process

Order = TypeVar("Order")
Result = TypeVar("Result")

_GRACE_SECONDS = 2.0  # after SIGTERM, before SIGKILL; short, as workers have nothing to save


@dataclass(frozen=True)
class Worker(ReportChannel):
    """A worker's connection to its crew."""

    gate: int
    """Read end of a pipe that the parent closes when all may begin."""

    def ready(self) -> None:
        """Report that this worker is ready to begin, and wait until all are."""
        self.reports.send(pickle.dumps(None))
        os.read(self.gate, 1)


def run_crew(
    work: Callable[[Worker, Order], Result],
    orders: Sequence[Order],
    role: Role,
    *,
    timeout_seconds: float,
    most_seconds: float = math.inf,
    on_ready: Callable[[], None] = lambda: None,
    on_look: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Run `work(worker, order)` in a forked process for each order; return the results in the same order.

    When all workers have called `ready()`, `on_ready` is called and they begin. `on_look` is called
    every half second. Exceptions in these are raised here, and end the crew.

    Call this in the main thread of a process without other threads. The first failure ends all workers, as `Ending`
    describes. Raises UserError or DlemuError with its message, Interrupted for a signal to this process, and SpaceError
    where the system can't start that many processes. No worker outlives the call.
    """
    waiting = len(orders)
    parent = os.getpid()
    with contextlib.ExitStack() as stack:
        gate, write_end = os.pipe()
        stack.callback(os.close, gate)
        gate_opener = stack.enter_context(os.fdopen(write_end, "wb", 0))

        def one_is_ready() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                on_ready()
                gate_opener.close()

        def run_worker(channel: ReportChannel) -> Result:
            gate_opener.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            die_with_parent(parent)
            name_process(f"dlemu-{role.name}")
            return work(Worker(channel.number, channel.role, channel.reports, gate), orders[channel.number])

        ends = run_processes(
            range(len(orders)),
            run_worker,
            role,
            timeout_seconds=timeout_seconds,
            grace_seconds=_GRACE_SECONDS,
            most_seconds=most_seconds,
            on_ready=one_is_ready,
            on_look=on_look,
        )
        failure = first_failure(ends)
        if failure is not None:
            raise _error(failure)
        return [end.result for end in ends]


def _error(failure: Failure) -> BaseException:
    if failure.kind == Interrupted.__name__:
        return Interrupted(failure.status - 128)
    error = (UserError if failure.status == UserError.exit_status else DlemuError)(failure.message)
    if failure.traceback:
        error.add_note(failure.traceback.rstrip())
    return error
