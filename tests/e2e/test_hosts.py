"""Hosts on one machine: network namespaces with names and Unix sockets of their own, with a cable to a switch each.

One folder has another content on each. Where a host is lost, each has its own /dev/shm and IPC too and MPI is held to
TCP: else it finds that both are one machine and needs no cable.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from tests.e2e.harness import (
    CEILING,
    MPIRUN,
    UNDER_MPI,
    assert_one_run,
    dlemu,
    dlemu_with,
    reported,
    small_run,
    start,
    steps,
    summary,
    until,
    until_it_trains,
    wait,
)

pytestmark = [pytest.mark.slow, *UNDER_MPI]

ON_HOST = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec "$host" {before} sh -c "hostname $host; mount --bind {folder}/$host {folder}/own; {mounts} $*"
"""
"""Starts a command on a host, as ssh would."""
MEETS = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
MEETS_WITHIN_SECONDS = 20


@dataclass(frozen=True)
class Hosts:
    names: tuple[str, ...]
    folder: Path

    apart: bool = False
    """Nothing joins them but the cable."""

    @property
    def first(self) -> str:
        return self.names[0]

    @property
    def second(self) -> str:
        return self.names[1]

    @property
    def mpirun(self) -> list[str]:
        """What starts two ranks on each of them, on the first."""
        launcher = str(self.folder / ("on_host_apart" if self.apart else "on_host"))
        mpirun = [MPIRUN, "-launcher", "ssh", "-launcher-exec", launcher, "-iface", "cable"]
        return [launcher, self.first, *mpirun, "-hosts", f"{self.first}:2,{self.second}:2", "-np", "4"]

    @property
    def own(self) -> Path:
        return self.folder / "own" / "run"

    def seen(self, host: str) -> Path:
        return self.folder / host / "run"

    def left_in_memory(self, host: str) -> list[str]:
        return os.listdir(self.folder / host / "shm")


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def processes_on(host: str) -> list[int]:
    return [int(word) for word in ip("netns", "pids", host).split()]


def kill(host: str) -> None:
    """End all processes of a host before one of them sees how another ends."""
    processes = processes_on(host)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


def ranks_on(host: str) -> Iterator[int]:
    for process in processes_on(host):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(process).name().startswith("dlemu"):
                yield process


@pytest.fixture
def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Two hosts, or as many as the test's parameter for `hosts` says."""
    names = tuple(f"dl{letter}{os.getpid()}" for letter in "abc"[: getattr(request, "param", 2)])
    switch = f"dls{os.getpid()}"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        for name in (*names, switch):
            ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this kernel makes no network namespaces: {error.stderr.strip()}")
    try:
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        folder = tmp_path / "hosts"
        (folder / "own").mkdir(parents=True)
        for number, name in enumerate(names, 1):
            ip("link", "add", "cable", "netns", name, "type", "veth", "peer", "name", f"port{number}", "netns", switch)
            ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
            (folder / name / "shm").mkdir(parents=True)
        # MPI passes over an interface whose carrier the kernel has not told yet.
        until(
            lambda: all("state UP" in ip("-n", name, "link", "show", "cable") for name in names), "the cable's carrier"
        )
        for launcher, before, mounts in (
            ("on_host", "unshare -u", ""),
            ("on_host_apart", "env UCX_TLS=tcp unshare -u -i", f"mount --bind {folder}/$host/shm /dev/shm;"),
        ):
            on_host = folder / launcher
            on_host.write_text(ON_HOST.format(folder=folder, before=before, mounts=mounts))
            on_host.chmod(0o755)
        yield Hosts(names, folder)
    finally:
        for name in (*names, switch):
            kill(name)
            ip("netns", "del", name)


@pytest.fixture
def hosts_apart(hosts: Hosts) -> Hosts:
    """Skip where this machine's MPI does not start between hosts that only a cable joins."""
    apart = replace(hosts, apart=True)
    program = hosts.folder / "meets.py"
    program.write_text(MEETS)
    process = subprocess.Popen([*apart.mpirun, sys.executable, str(program)], stderr=subprocess.PIPE, text=True)
    try:
        _, errors = process.communicate(timeout=MEETS_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        for name in (hosts.first, hosts.second):
            kill(name)
        process.communicate()
        pytest.skip(f"MPI did not start between two hosts within {MEETS_WITHIN_SECONDS} s")
    if process.returncode:
        pytest.skip(f"MPI does not start between two hosts: {errors.strip()[-300:]}")
    return apart


def test_accelerators_on_two_hosts_keep_one_timeline(hosts: Hosts, dataset: Path) -> None:
    """The results are written where rank 0 is; the other host need not see their folder."""
    dlemu("train", *small_run(hosts.own, dataset, CEILING), launcher=hosts.mpirun).assert_ran()
    folder = hosts.seen(hosts.first)
    recorded = assert_one_run(folder, [2, 2], hosts.names)["telemetry"]
    recorders = json.loads((folder / "facts.json").read_text())["recorders"]
    assert [one["host"] for one in recorders] == [hosts.first, hosts.second]
    counted = [one["name"] for one in recorded["devices"] if one["counted"]]
    assert len(counted) == len(set(counted)), "both see this machine's devices: each counts once"
    rows = steps(folder)
    ends = rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"]
    for step in range(1, 7):
        meeting = ends[(rows["epoch"] == 2) & (rows["step"] == step)]
        assert len(meeting) == 4
        assert meeting.max() - meeting.min() < 5_000_000, "both hosts have this machine's clock: one moment for all"
    assert not hosts.seen(hosts.second).exists()


def test_ranks_of_two_hosts_write_one_checkpoint_into_a_folder_that_both_see(hosts: Hosts, tmp_path: Path) -> None:
    words = ["workload=llama3_8b", "model.num_layers=1", "metric.ceiling_seconds=0"]
    words += [f"model.transformer.{key}" for key in ("hidden_size=64", "ffn_hidden_size=128", "vocab_size=512")]
    few = ("num_checkpoints_write=1", "num_checkpoints_read=1", "time_between_checkpoints=0")
    words += [f"checkpoint.{setting}" for setting in few]
    saved = tmp_path / "saved"
    shared = (f"output.folder={hosts.own}", f"checkpoint.checkpoint_folder={saved}")
    dlemu("checkpoint", *words, *shared, launcher=hosts.mpirun).assert_ran()
    assert [path.name for path in saved.iterdir()] == ["global_epoch1_step1"], "and nothing else"
    names = {path.name for path in (saved / "global_epoch1_step1").glob("zero*_optim_states.pt")}
    assert names == {f"zero_pp_rank_{rank}_mp_rank_0_optim_states.pt" for rank in range(4)}
    apart = (f"output.folder={hosts.own}-apart", f"checkpoint.checkpoint_folder={hosts.folder}/own/saved")
    refused = dlemu("checkpoint", *words, *apart, launcher=hosts.mpirun)
    assert refused.status != 0
    assert "which this host does not share with rank 0" in refused.err


@pytest.mark.parametrize("loss", ["killed", "cut off"])
def test_what_was_measured_outlives_a_host(loss: str, hosts_apart: Hosts, dataset: Path, tmp_path: Path) -> None:
    """The host that is killed sees the folder of the results; the one that is cut off does not."""
    hosts = hosts_apart
    shared = loss == "killed"
    folder = tmp_path / "run" if shared else hosts.own
    kept = folder if shared else hosts.seen(hosts.first)
    limit = tmp_path / "limit.yaml"  # in a file it counts from when the ranks are there, however long they take
    limit.write_text("timeout_seconds: 5\ndataset: {format: npz}\n")
    settings = [f"workload={limit}", *small_run(folder, dataset, "train.epochs=1000")[1:]]
    impatient = dlemu_with(tmp_path, "dlemu.ranks.mpi.SAVING_SECONDS", 5.0)
    process = start("train", *settings, program=impatient, launcher=hosts.mpirun)
    until_it_trains(process, kept, ranks=4 if shared else 2)
    assert any(ranks_on(hosts.second))
    if shared:
        kill(hosts.second)
    else:
        ip("-n", hosts.second, "link", "set", "cable", "down")
    ended = wait(process)
    assert ended.status != 0
    assert "Traceback" not in ended.err
    run = reported(kept)
    assert run.summary.complete is False
    lost = f"host {hosts.second} (ranks 2, 3)"
    assert set(run.rows["rank"]) == ({0, 1, 2, 3} if shared else {0, 1})
    if not shared:  # else mpirun kills all at once, and `live` has what was measured
        assert lost in summary(kept)["failure"]
        assert any(f"the measurements of ranks 2, 3 on {hosts.second} are lost" in one for one in run.summary.issues)
        assert f"dlemu: {lost} did not arrive within 5 s" in ended.err
    until(lambda: not any((*ranks_on(hosts.first), *ranks_on(hosts.second))), "all ranks to end")
    assert hosts.left_in_memory(hosts.first) == []
    assert shared or hosts.left_in_memory(hosts.second) == []
