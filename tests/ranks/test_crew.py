"""Crews of workers: what they return, and that each user of them ends in time, names the worker, and leaves nobody."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from datagen.errors import DatasetError, DlemuError, UserError
from dlemu.ranks import Comm
from dlemu.ranks.failure import Role
from dlemu.ranks.launch import run_crew
from tests.children import children
from tests.e2e.harness import assert_gone, until
from tests.ranks.many_ranks import PATIENCE_SECONDS
from tests.run.crews import CREWS

ROLE = Role("worker", "use fewer workers")
LONG_SECONDS = 600.0


def test_results_come_in_the_order_of_the_orders() -> None:
    def work(comm: Comm, order: str) -> tuple[int, str]:
        return comm.rank, order

    orders = ["a", "b", "c"]
    assert run_crew(work, orders, ROLE, timeout_seconds=LONG_SECONDS) == list(enumerate(orders))


def test_a_known_error_is_raised_in_its_own_words() -> None:
    def work(comm: Comm, order: str) -> None:
        if comm.rank == 1:
            raise DatasetError(order)
        time.sleep(LONG_SECONDS)

    with pytest.raises(UserError, match=r"^file 7 is damaged$"):
        run_crew(work, ["", "file 7 is damaged"], ROLE, timeout_seconds=LONG_SECONDS)


def test_a_crew_that_takes_too_long_is_ended_and_named() -> None:
    before = children()

    def work(comm: Comm, order: float) -> None:
        time.sleep(order)

    for most_seconds in (0.5, 5.0, 50.0):  # a busy machine may take longer to see the end of worker 0
        with pytest.raises(DlemuError, match=rf"did not end within {most_seconds:g} s: check the storage") as raised:
            run_crew(work, [0.0, LONG_SECONDS], ROLE, timeout_seconds=LONG_SECONDS, most_seconds=most_seconds)
        assert children() == before
        if "worker 1 (process " in str(raised.value):
            return
    pytest.fail(str(raised.value))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "what"),
    [
        *(("worker", what) for what in ("killed", "stopped", "raises", "interrupted", "orphaned")),
        *((role, "killed") for role in CREWS if role != "worker"),
    ],
)
def test_every_user_of_a_crew_ends_in_time_and_says_why(role: str, what: str, tmp_path: Path) -> None:
    """A stop counts after a second; nobody waits for the ten minutes of work."""
    words = [role, str(tmp_path), "fail" if what == "raises" else "hang"]
    command = [sys.executable, "-m", "tests.run.crews", *words]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    workers: list[psutil.Process] = []
    victim = 0
    if what != "raises":
        until(lambda: len(_named(program, role)) >= 2 or program.poll() is not None, "two of them")
        workers = psutil.Process(program.pid).children(recursive=True)
        victim = _named(program, role)[0].pid
    match what:
        case "killed":
            os.kill(victim, signal.SIGKILL)
        case "stopped":
            os.kill(victim, signal.SIGSTOP)
        case "interrupted":
            program.send_signal(signal.SIGINT)
        case "orphaned":
            os.kill(victim, signal.SIGSTOP)
            program.kill()
    _, said = program.communicate(timeout=PATIENCE_SECONDS)
    wanted, status = {
        "killed": (rf"^dlemu: {role} \d \(process {victim}\) was killed by SIGKILL; .*, or (use|audit) fewer ", 3),
        "stopped": (rf"^dlemu: {role} \d \(process {victim}\) was stopped from outside .* continue within 1 s$", 3),
        "raises": (rf"^dlemu: {role} \d: ValueError: odd$", 3),
        "interrupted": ("^$", 130),
        "orphaned": ("^$", -signal.SIGKILL),
    }[what]
    assert re.search(wanted, said.strip(), re.MULTILINE), said
    assert program.returncode == status
    assert_gone(workers)


def _named(program: subprocess.Popen[str], role: str) -> list[psutil.Process]:
    try:
        children = psutil.Process(program.pid).children()
        return [child for child in children if child.name() == f"dlemu-{role}"]
    except psutil.NoSuchProcess:
        return []
