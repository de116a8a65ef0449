"""Blocks on two hosts: each removes its own."""

from __future__ import annotations

import os
import signal

from tests.e2e import test_hosts
from tests.e2e.harness import start, until, wait
from tests.e2e.test_hosts import Hosts, hosts, ranks_on

pytestmark = test_hosts.pytestmark
hosts = hosts


def test_blocks_of_a_failed_run_are_removed_from_each_hosts_own_drive(hosts: Hosts) -> None:
    words = ["workload=llama3_1_8b", "scale=laptop", "kv.seconds=60", "kv.odirect=false", "metric.ceiling_seconds=0"]
    words += [f"kv.folder={hosts.folder}/own/kv", f"output.folder={hosts.own}", "telemetry.enabled=false"]
    process = start("kvcache", *words, launcher=hosts.mpirun)
    both = [hosts.folder / host / "kv" for host in (hosts.first, hosts.second)]
    until(lambda: all(any(kv.rglob("*.kv")) for kv in both) or process.poll() is not None, "blocks on both hosts")
    os.kill(max(ranks_on(hosts.second)), signal.SIGKILL)  # the last process: a rank
    assert wait(process).status != 0
    until(lambda: not any((*ranks_on(hosts.first), *ranks_on(hosts.second))), "all ranks to end")
    assert [path for kv in both for path in kv.iterdir()] == []
