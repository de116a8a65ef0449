"""Ranks that torchrun started, on one host and on two: network namespaces with an agent of torchrun in each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import (
    DLEMU,
    assert_one_run,
    dlemu,
    family,
    maps,
    small_run,
    start,
    summary,
    until,
    until_it_trains,
    wait,
    without,
)
from tests.e2e.test_hosts import Hosts, ip, kill, ranks_on
from tests.e2e.test_hosts import hosts as hosts

TORCHRUN = str(Path(sys.executable).parent / "torchrun")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.path.exists(TORCHRUN), reason="no torchrun in the environment; scripts/env dev installs it"
    ),
]


def torchrun(ranks: int) -> list[str]:
    return [TORCHRUN, "--standalone", "--nproc-per-node", str(ranks), "--no-python"]


def run_of(folder: Path, dataset: Path, *changes: str) -> list[str]:
    return without(small_run(folder, dataset, *changes), "ranks")


def start_on_all(hosts: Hosts, *words: str, program: str = DLEMU) -> list[subprocess.Popen[str]]:
    agents = []
    for node, host in enumerate(hosts.names):
        options = f"--nnodes {len(hosts.names)} --node-rank {node} --nproc-per-node 2"
        options += " --master-addr 10.77.0.1 --master-port 29511 --no-python"
        launcher = [str(hosts.folder / "on_host"), host, TORCHRUN, *options.split()]
        agents.append(start(*words, program=program, launcher=launcher))
    return agents


def test_torchruns_processes_are_one_run(dataset: Path, tmp_path: Path) -> None:
    dlemu("train", *run_of(tmp_path / "run", dataset), launcher=torchrun(3)).assert_ran()
    assert_one_run(tmp_path / "run", [3])


def test_a_killed_rank_is_named_and_what_was_measured_is_kept(dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("train", *run_of(folder, dataset, "train.epochs=1000"), launcher=torchrun(3))
    (victim,) = (
        one
        for one in until_it_trains(process, folder)
        if maps(one, "rank_00002.steps") and not maps(one, "rank_00000.steps")
    )
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
    words = without(run_of(hosts.own, dataset), "output.folder")
    ends = [wait(agent) for agent in start_on_all(hosts, "train", *words, program=str(twice))]
    for run in ("one", "two"):
        assert (hosts.seen(hosts.first) / run / "summary.json").exists(), (ends[0].err, ends[1].err)
        assert_one_run(hosts.seen(hosts.first) / run, [2, 2], hosts.names)
    assert not hosts.seen(hosts.second).exists()


@pytest.mark.parametrize("hosts", [3], indirect=True)
@pytest.mark.parametrize("loss", ["rank", "host", "link"])
def test_three_hosts_end_together_and_name_what_was_lost(
    loss: str, hosts: Hosts, dataset: Path, tmp_path: Path
) -> None:
    sees_all = loss == "rank"  # the other hosts see the results' folder, too
    folder, limit = tmp_path / "run" if sees_all else hosts.own, tmp_path / "limit.yaml"
    limit.write_text("timeout_seconds: 5\ndataset: {format: npz}\n")
    words = run_of(folder, dataset, "train.epochs=1000")
    agents = start_on_all(hosts, "train", *([f"workload={limit}", *words[1:]] if loss == "link" else words))
    first, last = folder if sees_all else hosts.seen(hosts.first), hosts.names[-1]
    until_it_trains(agents[0], first, ranks=6 if sees_all else 2)
    lost = f"host {last} (ranks 4, 5)"
    if loss == "rank":
        (victim,) = (
            one for one in family(agents[2]) if maps(one, "rank_00005.steps") and not maps(one, "rank_00004.steps")
        )
        lost = f"rank 5 (process {victim.pid}) was killed"
        victim.kill()
    elif loss == "host":
        kill(last)
    else:
        ip("-n", last, "link", "set", "cable", "down")
    ends = [wait(agent) for agent in agents]
    assert all(ended.status != 0 for ended in ends)
    assert lost in ends[2 if sees_all else 0].err
    assert ("rank 5" if sees_all else lost) in summary(first)["failure"]
    until(lambda: not any(any(ranks_on(host)) for host in hosts.names), "all ranks to end")


def test_without_torch_the_message_names_what_works(tmp_path: Path) -> None:
    """Two processes as a script starts them that sets the variables itself; torch can't be imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('no torch here')")
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    variables |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    words = ("workload=default", "reader.data_loader=threads")
    ended = dlemu("train", *words, **variables, PYTHONPATH=str(tmp_path), cwd=tmp_path)
    ended.assert_ended(2, "mpirun -np N", "ranks=N")
