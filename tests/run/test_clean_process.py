"""A function in a fresh interpreter: what it says and returns comes back, and its end is never silence."""

from __future__ import annotations

import os
import signal

import pytest

from datagen.errors import DatasetError, DlemuError
from dlemu.comm.failure import Role
from dlemu.runner.clean_process import Emit, run_clean
from tests.children import children

ROLE = Role("the process of the test", "test less")
LARGE = 300_000


def count(most: int, emit: Emit) -> str:
    """Say numbers, print something, and return a long text."""
    for number in range(most):
        emit(number)
    print("this is no message")
    return "x" * LARGE


def refuse(name: str, _: Emit) -> None:
    """Raise an error of dlemu's."""
    raise DatasetError(f"{name} is damaged")


def end(number: int, emit: Emit) -> None:
    """Say one thing and end this process by a signal."""
    emit("begun")
    os.kill(os.getpid(), number)


def test_messages_and_the_result_come_back() -> None:
    told: list[int] = []
    assert run_clean(count, 1000, ROLE, on_message=told.append) == "x" * LARGE
    assert told == list(range(1000))


def test_what_is_raised_there_is_raised_here() -> None:
    with pytest.raises(DatasetError, match=r"^a\.npz is damaged$"):
        run_clean(refuse, "a.npz", ROLE)


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "was killed by SIGKILL; .*, or test less"), (signal.SIGSEGV, "was killed by SIGSEGV")],
)
def test_who_is_killed_is_named(number: int, said: str) -> None:
    before = children()
    told: list[str] = []
    with pytest.raises(DlemuError, match=rf"^the process of the test \(process \d+\) {said}$"):
        run_clean(end, number, ROLE, on_message=told.append)
    assert told == ["begun"]
    assert children() == before
