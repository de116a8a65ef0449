"""Which launcher started this process, by the variables in its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

Launcher = Literal["none", "mpi", "store"]
"""What started this process: no launcher of ranks; mpirun or srun; torchrun, or whatever sets torchrun's variables."""

_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE", "SLURM_STEP_NUM_TASKS")
_STORE_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TORCHRUN = "TORCHELASTIC_RUN_ID"


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
