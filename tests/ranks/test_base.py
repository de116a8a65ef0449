from __future__ import annotations

import signal

import pytest

from dlemu.ranks import Interrupted, detect_launcher
from dlemu.ranks.launched import launcher_size


@pytest.mark.parametrize(
    ("environment", "launcher", "size"),
    [
        ({}, "none", 1),
        ({"PMI_SIZE": "18"}, "mpi", 18),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpi", 2),
        ({"MV2_COMM_WORLD_SIZE": "4"}, "mpi", 4),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "mpi", 2),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}, "none", 1),  # a shell inside an allocation
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"}, "none", 1),  # srun --pty bash
        ({"PMI_SIZE": "1"}, "none", 1),
        ({"PMIX_RANK": "0"}, "mpi", 1),
        ({"PMI_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "3"}, "mpi", 3),  # mpirun inside srun --pty bash
        ({"PMI_SIZE": "many"}, "none", 1),
    ],
)
def test_launcher_is_told_by_its_environment(environment: dict[str, str], launcher: str, size: int) -> None:
    assert detect_launcher(environment) == launcher
    assert launcher_size(environment) == size


def test_interruption_passes_broad_handlers_and_gives_the_shells_status() -> None:
    interruption = Interrupted(signal.SIGTERM)
    assert not isinstance(interruption, Exception)
    assert interruption.exit_status == 143
    assert interruption.signal_number == signal.SIGTERM
    assert str(interruption) == "interrupted by SIGTERM"
