"""Processes that were started by torchrun, or by whatever sets its variables.

Each has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from datagen.errors import UserError
from dlemu.ranks.comm_base import PeerLostError
from dlemu.ranks.process_control import PatienceError, within

if TYPE_CHECKING:  # placeholders import little
    from dlemu.ranks.gloo import GlooLeaders


class TorchrunProcess:
    """A process that torchrun's variables describe."""

    ends_all = False
    """torchrun ends the processes of its own host, by SIGTERM, and half a minute later by SIGKILL."""

    def __init__(self, timeout_seconds: float, environment: Mapping[str, str] = os.environ) -> None:
        """Raises UserError where the variables are not numbers or contradict each other."""
        self.timeout_seconds, self._environment = timeout_seconds, environment
        self._leaders: GlooLeaders | None = None
        try:
            self.rank, self.size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            local_rank = int(environment.get("LOCAL_RANK", "0"))
            local_size = int(environment.get("LOCAL_WORLD_SIZE") or _local_size(environment, local_rank))
            self._port = int(environment["MASTER_PORT"])
        except ValueError as error:
            raise UserError(f"the launcher's variables are not numbers ({error}): {_given(environment)}") from error
        if not 0 <= local_rank < local_size <= self.size or not local_rank <= self.rank <= self.size - local_size + (
            local_rank
        ):
            raise UserError(
                f"the launcher's variables contradict each other: {_given(environment)}; wanted RANK below WORLD_SIZE, "
                "LOCAL_RANK below LOCAL_WORLD_SIZE, and the ranks of a host one after the other"
            )
        first = self.rank - local_rank
        self.members = range(first, first + local_size)
        self._address = environment["MASTER_ADDR"]
        self._start = ".".join(environment.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT"))
        where = f"{self._address} {self._port} {self._start} {first} {self.size}"
        self.door = hashlib.sha256(where.encode()).hexdigest()[:32]

    def connect(self, led: Sequence[int]) -> GlooLeaders | None:
        if not led or len(led) == self.size:
            return None
        try:
            from dlemu.ranks.gloo import meet
        except (ImportError, RuntimeError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                "this process was started by torchrun (RANK, WORLD_SIZE, MASTER_ADDR), and on several hosts that needs "
                f'torch, which cannot be imported ({reason}): `pip install "dlemu[torch]"`, or start the ranks by '
                "`mpirun -np N dlemu ...`, or on one host by `dlemu ... ranks=N`"
            ) from error
        seconds, prefix = self.timeout_seconds, f"dlemu/{self._start}/"
        keeps = self.rank == 0 and self._environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            self._leaders = within(
                seconds + 1.0,
                lambda: meet(self._address, self._port, prefix, led, self.size, seconds, is_kept_here=keeps),
                "meeting the other hosts",
            )
        except PatienceError as error:
            raise PeerLostError(f"not all hosts arrived within {seconds:g} s") from error
        return self._leaders

    def finish(self) -> None:
        """Leave the other hosts; torchrun sees that the process ends."""
        if self._leaders is not None:
            self._leaders.close()

    def end(self, status: int) -> None:
        """The same: torchrun ends the processes of this host once one has failed, and the leaders see that."""
        self.finish()


def _local_size(environment: Mapping[str, str], local_rank: int) -> int:
    """Return this host's number of ranks without LOCAL_WORLD_SIZE: srun's, or else 1 if LOCAL_RANK isn't set either."""
    counts = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    if counts and len(set(counts.split(","))) == 1:  # "18(x2)", "18"
        return int(counts.partition("(")[0])
    if "LOCAL_RANK" in environment:
        raise UserError(
            f"LOCAL_RANK={local_rank} is set, and LOCAL_WORLD_SIZE is not: export the number of processes on this host "
            "as LOCAL_WORLD_SIZE (torchrun does)"
        )
    return 1


def _given(environment: Mapping[str, str]) -> str:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    return ", ".join(f"{name}={environment[name]}" for name in names if name in environment)
