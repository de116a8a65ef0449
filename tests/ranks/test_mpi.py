"""Real ranks under the mpirun that lies beside python; `MpiProcess(split=...)` pretends that they have several."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.ranks import mpi
from dlemu.ranks.launcher import on_one_host
from tests.ranks.mpi_program import BOOTED_LATER_NS

PROGRAM = Path(__file__).with_name("mpi_program.py")
LAUNCHER = Path(sys.executable).with_name("mpirun")
REPOSITORY = PROGRAM.parents[2]

needs_mpirun = pytest.mark.skipif(not LAUNCHER.exists(), reason="no mpirun beside python: pip install mpich")


def start(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program; Open MPI gets the flags it needs to start as root with more ranks than cores."""
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY))
    flags: list[str] = []
    version = subprocess.run([LAUNCHER, "--version"], capture_output=True, text=True, timeout=60)
    if "Open MPI" in version.stdout:
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_btl="self,tcp")
        flags = ["--map-by", ":oversubscribe"]
    command = [str(LAUNCHER), *flags, "-np", str(ranks), sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, env=environment)


def found(ranks: int, *arguments: str) -> dict[str, Any]:
    ended = start(ranks, *arguments)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


@needs_mpirun
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("ranks", "split", "nodes"),
    [
        (5, "one", [0] * 5),
        (2, "each", [0, 1]),
        (5, "cycle-3", [0, 1, 2, 0, 1]),
        (5, "block-2", [0, 0, 0, 1, 1]),
        pytest.param(18, "cycle-3", [0, 1, 2] * 6, marks=pytest.mark.slow),
    ],
)
def test_every_call_over_every_placement_and_waiting_costs_no_core(ranks: int, split: str, nodes: list[int]) -> None:
    result = found(ranks, "work and wait" if ranks == 18 else "work", split, "0")
    assert result.get("spent_seconds", 0.0) < (0.2 if split == "one" else 0.4)
    assert [row[0] for row in result["ranks"]] == list(range(ranks))
    assert [row[1] for row in result["ranks"]] == nodes
    for rank, row in enumerate(result["ranks"]):
        assert row[2] == nodes[:rank].count(nodes[rank]), "local rank counts up with the world rank"
        assert row[3] == nodes.count(nodes[rank])
        # In meeting k rank k's stamp is ahead by a second. The ranks' own stamps lie close together, each by the clock
        # of its pretended host, and so do the answers: the estimate of the clocks' offset is off by microseconds.
        assert row[4]
        assert all(abs(value - 10**9) < 5 * 10**8 for value in row[4])
    right, hosts, offsets = result["agreed"][0]
    assert result["agreed"] == [[True, hosts, offsets]] * ranks
    assert len(hosts) == len(offsets) == max(nodes) + 1
    assert offsets[0] == 0
    assert all(abs(offset - node * BOOTED_LATER_NS) < 10**8 for node, offset in enumerate(offsets))
    assert right


@needs_mpirun
@pytest.mark.mpi
def test_ranks_of_one_host_listen_to_no_other() -> None:
    addresses = found(2, "listen", "one", "-")["addresses"]
    assert {each.partition(":")[0] for of_rank in addresses for each in of_rank} == {"127.0.0.1"}, addresses


@needs_mpirun
@pytest.mark.mpi
@pytest.mark.slow
def test_large_values_cross_nodes() -> None:
    result = found(4, "work", "cycle-2", "5")  # so that what a node has to send is more than one piece
    assert [row[0] for row in result["agreed"]] == [True] * 4


@needs_mpirun
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("how", "words"),
    [
        # MPICH's launcher may kill all ranks before one of them has spoken; then the word is the launcher's.
        ("kill", "rank 3 ended without a message|Killed|killed|KILLED|EXIT CODE: 9"),
        ("sleep", "within 1 s"),
        ("fail", "the last rank failed"),
    ],
)
def test_a_lost_rank_ends_the_run_with_its_name(how: str, words: str) -> None:
    ended = start(4, "lose", "cycle-2", how)
    assert ended.returncode != 0
    assert re.search(words, ended.stderr + ended.stdout)


@pytest.mark.parametrize(
    ("environment", "alone"),
    [
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, True),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, False),
        ({"PMI_SIZE": "4"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, True),
        ({"PMI_SIZE": "4", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "4"}, True),
        ({"PMI_SIZE": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "4"}, False),
        ({"PMI_SIZE": "4", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}, False),  # mpirun in srun's shell
    ],
)
def test_mpi_is_kept_on_the_loopback_only_where_all_ranks_share_a_host(
    environment: dict[str, str], alone: bool
) -> None:
    assert on_one_host(environment) is alone


def test_the_names_of_mapped_mpi_memory_go_and_nothing_else() -> None:
    ours, others = f"/dev/shm/mpich_shm_test_{os.getpid()}", f"/dev/shm/stranger_{os.getpid()}"
    maps = []
    try:
        for path in (ours, others):
            with open(path, "w+b") as file:
                file.write(bytes(4096))
                file.flush()
                maps.append(mmap.mmap(file.fileno(), 4096))
        mpi.remove_shared_memory()
        assert not os.path.exists(ours)
        assert os.path.exists(others)
        maps[0][0] = 1  # the memory itself stays
    finally:
        for memory in maps:
            memory.close()
        for path in (ours, others):
            if os.path.exists(path):
                os.unlink(path)


@pytest.mark.parametrize(
    ("vendor", "environment", "foreign"),
    [
        ("Open MPI", {"PMI_SIZE": "4", "PMI_RANK": "0"}, True),
        ("MPICH", {"OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "0"}, True),
        ("MPICH", {"PMI_SIZE": "4"}, False),
        ("Open MPI", {"OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "0"}, False),
        ("Open MPI", {"PMI_SIZE": "4", "PMIX_RANK": "0"}, False),  # srun --mpi=pmix on a site that sets both
        ("MPICH", {"PMI_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "1"}, False),
    ],
)
def test_a_launcher_that_cannot_be_the_librarys_is_foreign(
    vendor: str, environment: dict[str, str], foreign: bool
) -> None:
    assert mpi.is_foreign(vendor, environment) is foreign


def test_a_foreign_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    library = SimpleNamespace(Exception=OSError, get_vendor=lambda: ("Open MPI",), Is_initialized=lambda: False)
    monkeypatch.setattr(mpi, "load_mpi", lambda: library)
    with pytest.raises(UserError, match=r"started 4 processes.*\(Open MPI\) is not the launcher's"):
        mpi.MpiProcess(1.0)


def test_no_mpi_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UserError, match=r'pip install "dlemu\[mpich\]"'):
        mpi.load_mpi()
