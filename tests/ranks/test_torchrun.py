from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from datagen.errors import UserError
from dlemu.ranks import detect_launcher
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
