"""Ranks that torchrun started, on one host and on two: network namespaces with an agent of torchrun in each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import DLEMU, dlemu, family, maps, small_run, start, summary, training, until, wait
from tests.e2e.test_hosts import Hosts, hosts, kill

TORCHRUN = str(Path(sys.executable).parent / "torchrun")
__all__ = ["hosts"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.path.exists(TORCHRUN), reason="no torchrun in the environment; scripts/env dev installs it"
    ),
]


def torchrun(ranks: int) -> list[str]:
    return [TORCHRUN, "--standalone", "--nproc-per-node", str(ranks), "--no-python"]


def run_of(folder: Path, dataset: Path, *changes: str) -> list[str]:
    return [word for word in small_run(folder, dataset, *changes) if not word.startswith("ranks=")]


def start_on_both(hosts: Hosts, *words: str, program: str = DLEMU) -> list[subprocess.Popen[str]]:
    """Start an agent with two ranks on each host."""
    agents = []
    for node, host in enumerate((hosts.first, hosts.second)):
        options = f"--nnodes 2 --node-rank {node} --master-addr 10.77.0.1 --master-port 29511 --nproc-per-node 2"
        launcher = [str(hosts.folder / "on_host"), host, TORCHRUN, *options.split(), "--no-python"]
        agents.append(start(*words, program=program, launcher=launcher))
    return agents


def test_torchruns_processes_are_one_run(dataset: Path, tmp_path: Path) -> None:
    ended = dlemu("train", *run_of(tmp_path / "run", dataset), launcher=torchrun(3))
    assert ended.ran, ended.err
    told = summary(tmp_path / "run")
    assert told["complete"] is True
    assert told["ranks_per_host"] == [3]


def test_a_killed_rank_is_named_and_what_was_measured_is_kept(dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("train", *run_of(folder, dataset, "train.epochs=1000"), launcher=torchrun(3))
    until(lambda: training(folder) or process.poll() is not None, "the ranks to train")
    processes = family(process)
    (victim,) = (one for one in processes if maps(one, "rank_00002.steps") and not maps(one, "rank_00000.steps"))
    victim.kill()
    ended = wait(process)
    assert ended.status != 0
    assert f"rank 2 (process {victim.pid}) was killed" in ended.err
    told = summary(folder)
    assert told["complete"] is False
    assert "rank 2" in told["failure"]


def test_two_hosts_are_one_run(hosts: Hosts, dataset: Path) -> None:
    """Two commands in turn: the second finds nothing of the first in the store that torchrun keeps."""
    twice = hosts.folder / "twice"
    twice.write_text(f"#!/bin/sh\nfor run in one two; do {DLEMU} $* output.folder={hosts.own}/$run; done\n")
    twice.chmod(0o755)
    words = [word for word in run_of(hosts.own, dataset) if not word.startswith("output.folder=")]
    ends = [wait(agent) for agent in start_on_both(hosts, "train", *words, program=str(twice))]
    for run in ("one", "two"):
        assert (hosts.seen(hosts.first) / run / "summary.json").exists(), (ends[0].err, ends[1].err)
        told = summary(hosts.seen(hosts.first) / run)
        assert told["complete"] is True
        assert [host["host"] for host in told["environment"]["hosts"]] == [hosts.first, hosts.second]
        assert told["ranks_per_host"] == [2, 2]
        assert {epoch["each_sample_once"] for epoch in told["audit"]} == {True}
    assert not hosts.seen(hosts.second).exists()


def test_a_failure_on_one_host_ends_the_other_with_its_message(hosts: Hosts, dataset: Path, tmp_path: Path) -> None:
    first = tmp_path / "run"
    agents = start_on_both(hosts, "train", *run_of(first, dataset, "train.epochs=1000"))
    until(lambda: training(first, ranks=4) or agents[0].poll() is not None, "the ranks to train")
    (victim,) = (
        one for one in family(agents[1]) if maps(one, "rank_00003.steps") and not maps(one, "rank_00002.steps")
    )
    victim.send_signal(signal.SIGKILL)
    ends = [wait(agent) for agent in agents]
    assert all(ended.status != 0 for ended in ends)
    assert f"rank 3 (process {victim.pid}) was killed" in ends[1].err
    assert "rank 3" in ends[0].err
    assert "rank 3" in summary(first)["failure"]


def test_a_host_that_dies_is_named(hosts: Hosts, dataset: Path) -> None:
    agents = start_on_both(hosts, "train", *run_of(hosts.own, dataset, "train.epochs=1000"))
    first = hosts.seen(hosts.first)
    until(lambda: training(first, ranks=2) or agents[0].poll() is not None, "the ranks to train")
    kill(hosts.second)
    ended = wait(agents[0])
    wait(agents[1])
    assert ended.status != 0
    assert f"host {hosts.second} (ranks 2, 3)" in ended.err
    assert f"host {hosts.second} (ranks 2, 3)" in summary(first)["failure"]


def test_without_torch_the_message_names_what_works(tmp_path: Path) -> None:
    """Two processes as a script starts them that sets the variables itself; torch can't be imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('no torch here')")
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    ended = dlemu("train", "workload=default", **variables, PYTHONPATH=str(tmp_path), cwd=tmp_path)
    assert ended.status == 2
    assert "mpirun -np N" in ended.err
    assert "ranks=N" in ended.err
