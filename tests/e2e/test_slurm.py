"""Slurm itself starts the ranks: a cluster of this machine alone, with daemons, keys and ports of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from datagen.errors import DlemuError
from dlemu.results.folder import read_run
from dlemu.results.run import Run
from tests.e2e.harness import dlemu, small_run, start, summary, training, until, wait
from tests.e2e.test_mpi import MPIRUN

DAEMONS = ("munged", "slurmctld", "slurmd")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.mpi,
    pytest.mark.skipif(not os.path.exists(MPIRUN), reason="no MPI library here; scripts/env dev installs one"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons are started by root"),
    pytest.mark.skipif(
        not all(map(shutil.which, (*DAEMONS, "srun"))), reason="no Slurm here; Debian: apt-get install slurm-wlm munge"
    ),
]

SETTINGS = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
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
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
FirstJobId={first_job}
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A cluster of one node."""

    settings: Path

    def srun(self, *options: str) -> list[str]:
        """What starts four ranks."""
        return ["env", f"SLURM_CONF={self.settings}", "srun", "-n", "4", *options]

    def command(self, *words: str) -> str:
        """Return what a command of Slurm's prints; nothing when it fails."""
        environment = os.environ | {"SLURM_CONF": str(self.settings)}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout.strip()


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    settings, key = folder / "slurm.conf", folder / "munge.key"
    host, ports = socket.gethostname().split(".")[0], free_ports()
    # MPI calls what its ranks share by the job's number: another such cluster, of tests beside these, has others.
    settings.write_text(SETTINGS.format(folder=folder, host=host, ports=ports, first_job=os.getpid() * 100))
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    places = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "log", "pid", "seed")]
    starts = (
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *places],
        ["slurmctld", "-D", "-f", str(settings)],
        ["slurmd", "-D", "-f", str(settings)],
    )
    cluster, running = Slurm(settings), []
    try:
        with (folder / "daemons.log").open("w") as log:
            for argv in starts:
                running.append(subprocess.Popen(argv, stdout=log, stderr=log))
                if argv[0] == "munged":
                    until(lambda: (folder / "munge.socket").exists() or running[0].poll() is not None, "munged")

        def ended() -> bool:
            return any(each.poll() is not None for each in running)

        until(lambda: ended() or cluster.command("sinfo", "-h", "-o", "%t") == "idle", "the node to be idle")
        if ended():
            pytest.skip(f"Slurm does not run here: {(folder / 'daemons.log').read_text()[-500:]}")
        yield cluster
    finally:
        for process in reversed(running):
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:  # slurmd at times
                process.kill()
                process.wait()


def over(folder: Path) -> Run | None:
    """Return the run, once nobody works on it any more."""
    try:
        return read_run(str(folder))
    except DlemuError:
        return None


def leader(folder: Path) -> psutil.Process:
    """Return the process that runs all ranks of a run on this host: the parent of its guardian."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            parent = process.parent()
            if process.name() == "dlemu-guardian" and parent and f"output.folder={folder}" in parent.cmdline():
                return parent
    raise AssertionError("no process runs the ranks")


def test_ranks_that_srun_starts_are_one_run(slurm: Slurm, dataset: Path, tmp_path: Path) -> None:
    ended = dlemu("train", *small_run(tmp_path / "run", dataset), launcher=slurm.srun("--mpi=pmi2"))
    assert ended.ran, ended.err
    told = summary(tmp_path / "run")
    assert told["ranks_per_host"] == [4]
    assert all(epoch["each_sample_once"] for epoch in told["audit"])


def test_processes_that_slurm_does_not_join_say_what_joins_them(slurm: Slurm, dataset: Path, tmp_path: Path) -> None:
    ended = dlemu("train", *small_run(tmp_path / "run", dataset), launcher=slurm.srun("--mpi=none"))
    assert ended.status != 0
    assert "under srun, `--mpi=pmi2` for MPICH" in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", ["killed", "cancelled"])
def test_what_was_measured_outlives_a_job(loss: str, slurm: Slurm, dataset: Path, tmp_path: Path) -> None:
    """A rank that is killed: srun kills all others, guardians too, and what was measured is read from `live`.

    A job that is cancelled is asked to end first, and saves.
    """
    folder = tmp_path / "run"
    process = start("train", *small_run(folder, dataset, "train.epochs=1000"), launcher=slurm.srun("--mpi=pmi2"))
    until(lambda: training(folder, ranks=4) or process.poll() is not None, "the ranks to train")
    if loss == "killed":
        one = leader(folder)
        [each for each in one.children() if each.name() == one.name()][-1].kill()
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
