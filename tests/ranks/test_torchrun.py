from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from datagen.errors import UserError
from dlemu.ranks import detect_launcher
from dlemu.ranks.comm_base import launcher_rank
from dlemu.ranks.torchrun import TorchrunProcess
from tests.ranks.many_ranks import PATIENCE_SECONDS

TORCHRUN = {"RANK": "20", "WORLD_SIZE": "36", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("more", "launcher"),
    [
        ({}, "store"),
        ({"WORLD_SIZE": "1", "RANK": "0"}, "none"),
        ({"MASTER_ADDR": ""}, "none"),
        ({"SLURM_PROCID": "20", "SLURM_STEP_NUM_TASKS": "36"}, "store"),  # srun without PMI, with exported variables
        ({"PMI_RANK": "20", "PMI_SIZE": "36"}, "mpi"),  # a script under mpirun that exports them too
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, "store"),  # torchrun under mpirun
        ({"PMIX_RANK": "20"}, "mpi"),
    ],
)
def test_torchruns_variables_are_a_launcher(more: dict[str, str], launcher: str) -> None:
    assert detect_launcher(TORCHRUN | more) == launcher
    assert launcher_rank(TORCHRUN) == 20


@pytest.mark.parametrize(
    ("more", "members"),
    [
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "18"}, range(18, 36)),
        ({"LOCAL_RANK": "2", "SLURM_STEP_TASKS_PER_NODE": "18(x2)"}, range(18, 36)),
        ({}, range(20, 21)),  # one process a host
    ],
)
def test_a_process_knows_its_host(more: dict[str, str], members: range) -> None:
    assert TorchrunProcess(1.0, TORCHRUN | more).members == members


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"LOCAL_RANK": "2"}, "export the number of processes on this host as LOCAL_WORLD_SIZE"),
        ({"LOCAL_RANK": "21", "LOCAL_WORLD_SIZE": "36"}, "contradict each other"),
        ({"RANK": "36", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "contradict each other"),
        ({"WORLD_SIZE": "many"}, "are not numbers"),
    ],
)
def test_variables_without_sense_are_refused(more: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TorchrunProcess(1.0, TORCHRUN | more)


LEADER = """
import socket, sys, threading
from dlemu.ranks.gloo import distributed, meet
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
leaders = meet("127.0.0.1", port, "test/", [0], 1, 60.0, is_kept_here=True)
leaders.close()
print(*(thread.name for thread in threading.enumerate()))
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_no_thread_is_in_torchs_code_when_the_process_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", LEADER], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (ended.returncode, ended.stdout.strip()) == (0, "MainThread"), ended.stderr
