"""Two hosts on one machine: network namespaces with names and Unix sockets of their own, joined by a virtual cable."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import dlemu, small_run, steps, summary
from tests.e2e.test_mpi import MPIRUN

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mpi,
    pytest.mark.skipif(not os.path.exists(MPIRUN), reason="no mpirun in the environment; scripts/env dev installs one"),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """Two joined namespaces and the program that starts a command on one of them, as ssh would."""
    names = f"dla{os.getpid()}", f"dlb{os.getpid()}"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        for name in names:
            ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this kernel makes no network namespaces: {error.stderr.decode().strip()}")
    try:
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        launcher = tmp_path / "on_host"
        launcher.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
            'exec ip netns exec "$host" unshare -u sh -c "hostname $host; $*"\n'
        )
        launcher.chmod(0o755)
        yield (*names, str(launcher))
    finally:
        for name in names:
            ip("netns", "del", name)


def test_accelerators_on_two_hosts_keep_one_timeline(
    hosts: tuple[str, str, str], dataset: Path, tmp_path: Path
) -> None:
    first, second, launcher = hosts
    mpirun = [MPIRUN, "-launcher", "ssh", "-launcher-exec", launcher, "-iface", "cable"]
    mpirun += ["-hosts", f"{first}:2,{second}:2", "-np", "4"]
    ended = dlemu(
        "train",
        *small_run(tmp_path / "run", dataset, "reader.data_loader=threads"),
        launcher=[launcher, first, *mpirun],
    )
    assert ended.status == 0, ended.err
    told = summary(tmp_path / "run")
    assert told["hosts"] == [first, second]
    assert told["ranks_per_host"] == [2, 2]
    assert all(epoch["each_sample_once"] for epoch in told["audit"])
    recorded = told["telemetry"]
    assert [one["host"] for one in recorded["recorders"]] == [first, second]
    counted = [one["name"] for one in recorded["devices"] if one["counted"]]
    assert len(counted) == len(set(counted)), "both see this machine's devices: each counts once"
    rows = steps(tmp_path / "run")
    ends = rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"]
    for step in range(1, 7):
        meeting = ends[(rows["epoch"] == 2) & (rows["step"] == step)]
        assert len(meeting) == 4
        assert meeting.max() - meeting.min() < 5_000_000, "both hosts have this machine's clock: one moment for all"
