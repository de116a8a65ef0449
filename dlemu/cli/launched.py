"""A training run with the ranks that there are: the launcher's, or forked here."""

from __future__ import annotations

from dlemu.cli.manner import TrainManner
from dlemu.comm import detect_launcher


def train(manner: TrainManner) -> int:
    """Run and return the exit status; raises UserError for what is wrong before the ranks start."""
    if detect_launcher() == "mpi":
        from dlemu.cli.mpi_run import train_under_mpi

        return train_under_mpi(manner)
    from dlemu.cli.forked_run import train_forked

    return train_forked(manner)
