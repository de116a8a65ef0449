from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from dlemu.comm import Interrupted
from dlemu.comm.process_control import after_fork_in_child, flush_output, interrupt_on, interrupt_once, start_thread


def test_an_interruption_is_raised_once() -> None:
    handler = interrupt_once()
    with pytest.raises(Interrupted):
        handler(signal.SIGTERM, None)
    handler(signal.SIGTERM, None)


@pytest.mark.parametrize("ignored", [False, True], ids=["closed", "nohup"])
def test_a_closed_terminal_interrupts_unless_nohup_has_it_ignored(ignored: bool) -> None:
    numbers = signal.SIGTERM, signal.SIGHUP
    before = [signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL) for number in numbers]
    try:
        interrupt_on(signal.SIGTERM)
        with contextlib.nullcontext() if ignored else pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGHUP)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_who_was_interrupted_is_not_interrupted_again_by_the_end_of_a_child() -> None:
    """As PyTorch does for its workers, which a batch system or a stopped container signals too."""

    def watch(number: int, frame: FrameType | None) -> None:
        raise RuntimeError("a worker died")

    before = signal.signal(signal.SIGCHLD, watch)
    try:
        with pytest.raises(Interrupted):
            interrupt_once()(signal.SIGTERM, None)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.01)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_end_of_a_child_that_comes_with_an_interruption_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    def watch(number: int, frame: FrameType | None) -> None:
        raise RuntimeError("a worker died")

    both = signal.SIGTERM, signal.SIGCHLD
    before = [signal.signal(number, handler) for number, handler in zip(both, (interrupt_once(), watch), strict=True)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, both)
    try:
        for number in both:
            signal.raise_signal(number)  # to this thread: any other one of the process would take it at once
        with pytest.raises(Interrupted):
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler)
    assert told == []


class Ended:
    """Interrupted as it goes away, where nothing that is raised arrives."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_an_interruption_that_is_lost_comes_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    before = signal.signal(signal.SIGTERM, interrupt_once())
    try:
        Ended()
        with pytest.raises(Interrupted):
            time.sleep(60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == []


class Holder:
    def __init__(self) -> None:
        self.held = True

    def forget(self) -> None:
        self.held = False


def test_a_forked_child_forgets_and_its_parent_does_not() -> None:
    holder = Holder()
    after_fork_in_child(holder.forget)
    child = os.fork()
    if child == 0:
        os._exit(int(holder.held))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert holder.held


def test_what_is_gone_is_not_called_in_a_child() -> None:
    after_fork_in_child(Holder().forget)
    gc.collect()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_output_is_waited_for_until_it_is_read() -> None:
    reader, writer = os.pipe()
    kept = os.dup(1)
    os.dup2(writer, 1)
    took: list[float] = []

    def read() -> None:
        time.sleep(0.2)
        took.append(time.monotonic())
        os.read(reader, 100)

    thread = threading.Thread(target=read)
    try:
        os.write(1, b"the cause")
        thread.start()
        flush_output()
        left = time.monotonic()
    finally:
        os.dup2(kept, 1)
        thread.join()
        for descriptor in (reader, writer, kept):
            os.close(descriptor)
    assert took[0] < left


@pytest.mark.timeout(60)
def test_the_end_of_a_worker_harms_no_thread_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error, PyTorch's, strikes at each instruction of `start_thread` in turn: what was started runs."""
    gc.collect()  # what earlier tests left may warn when it goes: now, and not while the hook below counts
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    threads: list[tuple[threading.Thread, threading.Event]] = []

    def watch(number: int, frame: FrameType | None) -> None:
        raise RuntimeError("a worker died")

    def is_struck(instruction: int) -> bool:
        passed, ran = 0, threading.Event()

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal passed
            frame.f_trace_opcodes = True
            passed += event == "opcode"
            if passed == instruction and event == "opcode":
                signal.raise_signal(signal.SIGCHLD)
            return trace

        threads.append((threading.Thread(target=ran.set), ran))
        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            start_thread(threads[-1][0])
        except RuntimeError:
            return True
        finally:
            sys.settrace(outer)
        return False

    before = signal.signal(signal.SIGCHLD, watch)
    try:
        while is_struck(len(threads) + 1):
            assert signal.getsignal(signal.SIGCHLD) is watch
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert len(threads) > 50, "the last one had fewer instructions"
    assert all(ran.wait(5) for thread, ran in threads if thread.ident is not None)
    assert threads[-1][1].is_set()
    assert lost == []
