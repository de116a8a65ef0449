"""Slurm itself starts the ranks: on this machine alone and on two hosts, with daemons, keys and ports of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from datagen.errors import DlemuError
from dlemu.jobs.training.result import Run, read_run
from tests.e2e.harness import UNDER_MPI, assert_one_run, dlemu, maps, small_run, start, until, until_it_trains, wait
from tests.e2e.test_hosts import Hosts
from tests.e2e.test_hosts import hosts as hosts

_CLUSTERS = itertools.count()
DAEMONS = ("munged", "slurmctld", "slurmd")
pytestmark = [
    pytest.mark.slow,
    *UNDER_MPI,
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons are started by root"),
    pytest.mark.skipif(
        not all(map(shutil.which, (*DAEMONS, "srun"))), reason="no Slurm here; Debian: apt-get install slurm-wlm munge"
    ),
]

SETTINGS = """ClusterName=one
SlurmctldHost={first}({address})
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
FirstJobId={first_job}
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A cluster whose commands are given on its first node; `on` starts something on a node."""

    folder: Path
    nodes: dict[str, str]
    """Names and addresses."""
    on: Callable[[str], list[str]]

    @property
    def settings(self) -> Path:
        return self.folder / "slurm.conf"

    def first(self, *words: str) -> list[str]:
        return [*self.on(next(iter(self.nodes))), "env", f"SLURM_CONF={self.settings}", *words]

    def srun(self, *options: str) -> list[str]:
        return self.first("srun", "-n", "4", *options)

    def command(self, *words: str) -> str:
        """Return what a command of Slurm's prints; nothing when it fails."""
        return subprocess.run(self.first(*words), capture_output=True, text=True, check=False).stdout.strip()


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


@contextlib.contextmanager
def running(nodes: dict[str, str], on: Callable[[str], list[str]]) -> Iterator[Slurm]:
    """Start the daemons of a cluster, and end them; skip where they do not run."""
    # Slurm's sockets lie there, and a socket's path has 108 bytes at most: pytest's folders are too deep.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        yield from _running(Slurm(Path(folder), nodes, on))


def _running(cluster: Slurm) -> Iterator[Slurm]:
    folder, settings, key = cluster.folder, cluster.settings, cluster.folder / "munge.key"
    (folder / "state").mkdir()
    first, address = next(iter(cluster.nodes.items()))
    lines = (f"NodeName={name} NodeAddr={where} CPUs=8 State=UNKNOWN" for name, where in cluster.nodes.items())
    # MPI calls what its ranks share by the job's number: no two clusters of this machine may have the same.
    numbers = {"ports": free_ports(), "first_job": 1000 * (os.getpid() % 50_000) + 100 * next(_CLUSTERS)}
    settings.write_text(SETTINGS.format(folder=folder, first=first, address=address, nodes="\n".join(lines), **numbers))
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    places = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "log", "pid", "seed")]
    starts = (
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *places],
        [*cluster.on(first), "slurmctld", "-D", "-f", str(settings)],
        *([*cluster.on(name), "slurmd", "-D", "-f", str(settings)] for name in cluster.nodes),
    )
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "daemons.log").open("w") as log:
            for argv in starts:
                daemons.append(subprocess.Popen(argv, stdout=log, stderr=log))
                if argv[0] == "munged":
                    until(lambda: (folder / "munge.socket").exists() or daemons[0].poll() is not None, "munged")

        def ended() -> bool:
            return any(each.poll() is not None for each in daemons)

        def idle() -> bool:
            return cluster.command("sinfo", "-h", "-o", "%t %D") == f"idle {len(cluster.nodes)}"

        until(lambda: ended() or idle(), "the nodes to be idle")
        if ended():
            pytest.skip(f"Slurm does not run here: {(folder / 'daemons.log').read_text()[-500:]}")
        yield cluster
    finally:
        for process in reversed(daemons):
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:  # slurmd at times
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with running({socket.gethostname().split(".")[0]: "127.0.0.1"}, lambda node: []) as cluster:
        yield cluster


@pytest.fixture
def slurm_of_two(hosts: Hosts) -> Iterator[Slurm]:
    nodes = {hosts.first: "10.77.0.1", hosts.second: "10.77.0.2"}

    def on(node: str) -> list[str]:
        """Not by `ip netns`, which mounts a /sys without control groups, and slurmd wants them."""
        apart = 'hostname "$0"; mount -t tmpfs none /dev/shm; exec "$@"'
        return ["nsenter", f"--net=/run/netns/{node}", "unshare", "-u", "-m", "sh", "-c", apart, node]

    with running(nodes, on) as cluster:
        yield cluster


def over(folder: Path) -> Run | None:
    try:
        return read_run(str(folder))
    except DlemuError:
        return None


def leader(folder: Path) -> psutil.Process:
    """Return a process that runs all ranks of a run on its host."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if f"output.folder={folder}" in process.cmdline() and any(maps(one, "rank_") for one in process.children()):
                return process
    raise AssertionError("no process runs the ranks")


@pytest.mark.parametrize(("cluster", "per_host"), [("slurm", [4]), ("slurm_of_two", [2, 2])])
def test_ranks_that_srun_starts_are_one_run(
    cluster: str, per_host: list[int], request: pytest.FixtureRequest, dataset: Path, tmp_path: Path
) -> None:
    slurm: Slurm = request.getfixturevalue(cluster)
    launcher = slurm.srun("--mpi=pmi2", "-N", str(len(per_host)))
    dlemu("train", *small_run(tmp_path / "run", dataset), launcher=launcher).assert_ran()
    assert_one_run(tmp_path / "run", per_host, list(slurm.nodes))


def test_processes_that_slurm_does_not_join_say_what_joins_them(slurm: Slurm, dataset: Path, tmp_path: Path) -> None:
    ended = dlemu("train", *small_run(tmp_path / "run", dataset), launcher=slurm.srun("--mpi=none"))
    assert ended.status != 0
    assert "under srun, `--mpi=pmi2` for MPICH" in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("loss", "cluster"), [("killed", "slurm"), ("cancelled", "slurm"), ("killed", "slurm_of_two")])
def test_what_was_measured_outlives_a_job(
    loss: str, cluster: str, request: pytest.FixtureRequest, dataset: Path, tmp_path: Path
) -> None:
    """Its leader saves what was measured; else it is read from `live`."""
    slurm: Slurm = request.getfixturevalue(cluster)
    folder = tmp_path / "run"
    launcher = slurm.srun("--mpi=pmi2", "-N", str(len(slurm.nodes)))
    process = start("train", *small_run(folder, dataset, "train.epochs=1000"), launcher=launcher)
    until_it_trains(process, folder, ranks=4)
    if loss == "killed":
        one = leader(folder)
        [each for each in one.children() if maps(each, "rank_")][-1].kill()
    else:
        slurm.command("scancel", slurm.command("squeue", "-h", "-o", "%i"))
    ended = wait(process)
    assert ended.status != 0
    assert "Traceback" not in ended.err, ended.err
    assert loss == "cancelled" or "was killed" in ended.err
    run = until(lambda: over(folder), "the run to be over")
    assert len(run.rows) >= 4
    assert run.summary.complete is False
    assert loss == "cancelled" or run.summary.failure
    until(lambda: slurm.command("squeue", "-h") == "", "the job to be gone")
