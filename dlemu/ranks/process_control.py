"""Control of processes: signals, the parent's end, orphaned descendants, forks, and calls that hang.

Linux only: prctl(2) is called through ctypes, because the standard library has no interface to it.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import FrameType
from typing import TypeVar

import psutil

from datagen.errors import DlemuError

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # from linux/prctl.h, like the next two
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_RESEND_SECONDS = 0.02  # wait before a signal is sent again: long enough for a destructor or a fork's hooks to end
_OUTPUT_SECONDS = 0.3  # wait for the launcher, which takes milliseconds to send output to the host that prints it

T = TypeVar("T")


class Interrupted(BaseException):
    """This process must stop, after saving its data. Not an `Exception`, so that no broad `except` catches it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number  # the shell's convention: 130 for Ctrl-C, 143 for SIGTERM


def die_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """Make the kernel send this process `signal_number` when process `parent` ends; SIGKILL if that has already ended.

    The kernel watches the *thread* that forked this process, so fork from the main thread.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal_number))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans(adopt: bool) -> bool:
    """Set whether orphaned descendants become children of this process (a subreaper); return the previous setting."""
    previous = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(previous))
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))
    return bool(previous.value)


def is_stopped(process: int) -> bool:
    """Return whether a process is stopped (SIGSTOP, or a debugger), from its state in proc(5)."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def name_process(name: str) -> None:
    """Set the name by which `ps` and `top` show this process; only its first 15 bytes count."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(text))


def fork_process(run: Callable[[], int]) -> int:
    """Fork a process that calls `run` and ends with the status that this returns; return its id. Raises OSError."""
    process = os.fork()
    if process == 0:
        status = 128 + signal.SIGTERM
        try:
            status = run()
            with contextlib.suppress(OSError, ValueError):
                flush_output(0.0)
        finally:
            os._exit(status)  # never return into the caller's stack
    return process


def interrupt_on(*numbers: int) -> None:
    """Make each of these signals raise `Interrupted` the first time; with SIGTERM also SIGHUP, unless it is ignored."""
    if signal.SIGTERM in numbers and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers = (*numbers, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, interrupt_once())


def interrupt_once() -> Callable[[int, FrameType | None], None]:
    """Return a signal handler that raises `Interrupted` the first time, and does nothing after that.

    The handler also ignores SIGCHLD from then on: a signal to all of a job's processes ends PyTorch's workers, too, and
    PyTorch's handler of SIGCHLD would raise. If `Interrupted` is raised in a destructor or a fork's hooks, Python drops
    it and calls sys.unraisablehook, which this function replaces by a hook that sends the signal again.
    """
    raised = False
    earlier_hook = sys.unraisablehook

    def resend(unraisable: sys.UnraisableHookArgs) -> None:
        nonlocal raised
        if raised and isinstance(unraisable.exc_value, Interrupted):
            raised = False
            _thread.start_new_thread(_signal_again, (unraisable.exc_value.signal_number,))
        else:
            earlier_hook(unraisable)

    def handle(signal_number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if not raised:
            raised = True
            signal.signal(signal.SIGCHLD, ignore)
            raise Interrupted(signal_number)

    sys.unraisablehook = resend
    return handle


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, and defer SIGCHLD until it runs, because PyTorch's handler raises if a worker has died.

    If `Thread.start` raised, Python would not know the thread, which would then fail with a message.
    """
    if threading.current_thread() is not threading.main_thread():  # signal handlers run in the main thread only
        thread.start()
        return
    deaths: list[tuple[int, FrameType | None]] = []  # arguments of the deferred calls of the handler
    handler = signal.signal(signal.SIGCHLD, lambda *arguments: deaths.append(arguments))
    try:
        thread.start()
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if handler is None else handler)
        if deaths and callable(handler):
            handler(*deaths[-1])


def _signal_again(number: int) -> None:
    time.sleep(_RESEND_SECONDS)
    if callable(signal.getsignal(number)) and (ident := threading.main_thread().ident) is not None:
        signal.pthread_kill(ident, number)


def ignore(signal_number: int, frame: FrameType | None) -> None:
    """Do nothing: a signal handler to set in place of SIG_DFL or SIG_IGN.

    If one of those replaces a handler while a signal is pending, Python reports a "race condition". Also, Python writes
    only signals with a handler to its wakeup descriptor.
    """


def flush_output(seconds: float = _OUTPUT_SECONDS) -> None:
    """Flush stdout and stderr, and give the launcher time to print the output, which an abort would overtake."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # a service may have no such stream
            stream.flush()
    time.sleep(seconds)


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def in_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Start a call in a daemon thread, which does not keep the process alive; return its future result."""
    outcome = Future[T]()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    return outcome


class PatienceError(DlemuError):
    """A call took too long: its file system probably hangs, and would block the next call as well."""


def within(seconds: float, call: Callable[[], T], task: str) -> T:
    """Return the result of a call made in a thread, or raise its exception; PatienceError names `task` if it is late.

    A call that blocks in the kernel, such as a `stat` of a hung file system, stays in its thread. Use this from the
    main thread: it only waits, so Ctrl-C is handled. A SIGTERM in the second half of the wait most likely comes from a
    supervisor that misses this process because of the call, and is therefore reported as PatienceError, too.
    """
    began_seconds = time.monotonic()
    outcome = in_thread(call, "dlemu-patience")
    interruption: BaseException | None = None
    try:
        wait([outcome], min(seconds, threading.TIMEOUT_MAX))
    except Interrupted as caught:
        interruption = caught
        if outcome.done() or caught.signal_number != signal.SIGTERM or time.monotonic() - began_seconds < seconds / 2:
            raise
    if interruption is not None or not outcome.done():
        waited = "longer than" if interruption is None else "more than half of"
        raise PatienceError(
            f"{task} took {waited} {seconds:g} s (timeout_seconds): a hung file system does this; see `df` and `dmesg`"
        ) from interruption
    return outcome.result()


def becomes_visible(is_visible: Callable[[], bool]) -> bool:
    """Return whether another host's new file becomes visible within 10 s: a network file system caches folders."""
    for _ in range(50):
        if is_visible():
            return True
        time.sleep(0.2)  # five checks per second are no load for a file server
    return False
