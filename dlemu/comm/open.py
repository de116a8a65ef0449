"""Which communicator this process was started for."""

from __future__ import annotations

from dlemu.comm.comm_base import Comm, detect_launcher
from dlemu.comm.local import LocalComm


def open_comm(timeout_seconds: float) -> Comm:
    """Return the communicator of the ranks that mpirun or srun started, or that of this process alone.

    Raises UserError when there is no usable MPI library, PeerLostError when a rank does not arrive in time.
    """
    if detect_launcher() == "none":
        return LocalComm(timeout_seconds=timeout_seconds)
    from dlemu.comm.mpi import MpiComm  # imports mpi4py, which only ranks of a launcher need

    return MpiComm(timeout_seconds)
