from __future__ import annotations

import signal

import pytest

from dlemu.ranks import Interrupted, detect_launcher, launcher_size
from dlemu.ranks.comm_base import launcher_rank


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


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        ({"PMI_RANK": "3", "PMI_SIZE": "18"}, 3),
        ({"PMIX_RANK": "4"}, 4),
        ({"OMPI_COMM_WORLD_RANK": "5", "PMIX_RANK": "5"}, 5),
        ({"MV2_COMM_WORLD_RANK": "6"}, 6),
        ({"PALS_RANKID": "7"}, 7),
        ({"SLURM_PROCID": "8"}, 8),
        ({"SLURM_PROCID": "0", "PMI_RANK": "2"}, 2),  # mpirun inside srun --pty bash
        ({"PMI_RANK": ""}, 0),
    ],
)
def test_the_rank_is_told_by_the_environment(environment: dict[str, str], rank: int) -> None:
    assert launcher_rank(environment) == rank


def test_interruption_passes_broad_handlers_and_gives_the_shells_status() -> None:
    interruption = Interrupted(signal.SIGTERM)
    assert not isinstance(interruption, Exception)
    assert interruption.exit_status == 143
    assert interruption.signal_number == signal.SIGTERM
    assert str(interruption) == "interrupted by SIGTERM"
