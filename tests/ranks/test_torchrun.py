from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from datagen.errors import UserError
from dlemu.ranks.torchrun import TorchrunProcess
from tests.ranks.many_ranks import PATIENCE_SECONDS
from tests.ranks.test_base import TORCHRUN


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
