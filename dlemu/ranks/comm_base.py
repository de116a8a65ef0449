"""The interface of every communicator, and how to tell which launcher started this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from datagen.errors import DlemuError

Launcher = Literal["none", "mpi", "store"]
"""What started this process: no launcher of ranks; mpirun or srun; torchrun, or whatever sets torchrun's variables."""

_RANK_VARIABLES = (
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "SLURM_PROCID",
)
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE", "SLURM_STEP_NUM_TASKS")
_STORE_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TORCHRUN = "TORCHELASTIC_RUN_ID"


class PeerLostError(DlemuError):
    """Another rank ended or did not arrive; if that rank reported an error of its own, show that one as the cause."""


class Interrupted(BaseException):
    """This process has to stop: save what must be saved. No `Exception`, so that no broad `except` swallows it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number

    @property
    def exit_status(self) -> int:
        """The shell's convention: 128 + signal, so 130 for Ctrl-C and 143 for SIGTERM."""
        return 128 + self.signal_number


class Comm(Protocol):
    """The ranks of one run. Every call is collective and has a deadline; waiting costs no CPU.

    Only the main thread may make calls. They raise `PeerLostError` when a rank is gone or late; then only `close`
    may still be called.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    """Index of this rank's node in `hosts`."""
    hosts: tuple[str, ...]
    """Host name of each node, in node order; rank 0 is on node 0."""

    def all_reduce_max(self, value_ns: int) -> int:
        """Return the maximum of `value_ns` over all ranks (CLOCK_MONOTONIC; translated between the clocks of hosts)."""

    def synchronise_clocks(self) -> tuple[int, ...]:
        """Estimate each node's monotonic clock against node 0's; nanoseconds to add to get node 0's time."""

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's value in rank order on rank 0, None elsewhere."""

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""

    def set_timeout(self, timeout_seconds: float) -> None:
        """Wait at most this long for other ranks from now on. Each rank sets its own; not collective."""

    def close(self) -> None:
        """Leave once all ranks have arrived here: the last call. After a failure only free what this rank holds."""


def name_ranks(ranks: Sequence[int]) -> str:
    """Return how messages name one or more ranks, given in rising order: "rank 3", "ranks 0 to 7"."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def launcher_size(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many processes mpirun or srun says it started, 1 when there is no launcher.

    The largest variable counts: one launcher may have been started by another.
    """
    sizes = [environment.get(name, "") for name in _SIZE_VARIABLES]
    return max((int(size) for size in sizes if size.isdecimal()), default=1)


def on_one_host(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the launcher says that all of its processes are on this host; False where it does not say."""
    size = str(launcher_size(environment))
    local_sizes = [environment.get(name) for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")]
    return size in local_sizes or environment.get("SLURM_STEP_NUM_NODES") == "1"


def launcher_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return this process's rank by its launcher's variables, 0 without any."""
    if detect_launcher(environment) == "store":
        return int(environment["RANK"])
    return max(int(environment.get(name) or 0) for name in _RANK_VARIABLES)


def detect_launcher(environment: Mapping[str, str] = os.environ) -> Launcher:
    """Return whether this process is one of several that mpirun, srun or torchrun started.

    torchrun is the innermost: its processes inherit the variables of the mpirun or srun that started it. Its variables
    without torchrun's own (a script under srun, a Kubernetes operator) count only where no MPI launcher has several
    ranks.

    A launcher of one process (`srun --pty bash`) counts as none. A bare PMIx launcher sets the rank but not the size,
    so it counts unless a size of 1 is known.
    """
    has_ranks = all(environment.get(name) for name in _STORE_VARIABLES)
    mpi_size = launcher_size({name: size for name, size in environment.items() if name != "SLURM_STEP_NUM_TASKS"})
    if has_ranks and (_TORCHRUN in environment or (mpi_size == 1 and "PMIX_RANK" not in environment)):
        return "none" if environment["WORLD_SIZE"] == "1" else "store"
    if launcher_size(environment) > 1:
        return "mpi"
    size_known = any(name in environment for name in _SIZE_VARIABLES)
    return "mpi" if "PMIX_RANK" in environment and not size_known else "none"
