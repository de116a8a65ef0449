from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

from datagen.errors import UserError
from dlemu.ranks import Interrupted, detect_launcher
from dlemu.ranks.launcher import launcher_size
from dlemu.ranks.torchrun import TorchrunProcess
from tests.ranks.many_ranks import PATIENCE_SECONDS

TORCHRUN = {"RANK": "20", "WORLD_SIZE": "36", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


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
        (TORCHRUN, "store", 1),
        (TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, "none", 1),
        (TORCHRUN | {"MASTER_ADDR": ""}, "none", 1),
        (TORCHRUN | {"SLURM_PROCID": "20", "SLURM_STEP_NUM_TASKS": "36"}, "store", 36),  # srun without PMI
        (TORCHRUN | {"PMI_RANK": "20", "PMI_SIZE": "36"}, "mpi", 36),  # a script under mpirun that exports them too
        (TORCHRUN | {"PMI_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, "store", 2),  # torchrun under mpirun
        (TORCHRUN | {"PMIX_RANK": "20"}, "mpi", 1),
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


# Processes of torchrun.


def test_a_process_knows_its_host() -> None:
    local = {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "18"}
    assert TorchrunProcess(1.0, TORCHRUN | local).members == range(18, 36)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"LOCAL_RANK": "2"}, "no sense .'LOCAL_WORLD_SIZE'.*LOCAL_WORLD_SIZE .how many processes this host has"),
        ({"LOCAL_RANK": "21", "LOCAL_WORLD_SIZE": "36"}, "contradict each other"),
        ({"RANK": "36", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "contradict each other"),
        ({"WORLD_SIZE": "many"}, "invalid literal .*'many'"),
    ],
)
def test_variables_without_sense_are_refused(more: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TorchrunProcess(1.0, TORCHRUN | more)


LEADER = """
import os, socket, threading
from dlemu.ranks.torchrun import TorchrunProcess
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
other = os.fork()
rank = 0 if other else 1
here = dict(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
process = TorchrunProcess(60.0, here)
process.connect([rank])
assert process.all_values(rank) == [0, 1]
process.finish()
if not other:
    os._exit(0)
assert os.waitpid(other, 0)[1] == 0
print(*(thread.name for thread in threading.enumerate()))
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_no_thread_is_in_torchs_code_when_the_process_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", LEADER], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (ended.returncode, ended.stdout.strip()) == (0, "MainThread"), ended.stderr
