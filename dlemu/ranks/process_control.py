"""How a process of a run handles its signals, its parent's death, its orphaned descendants and calls that hang.

Linux only: prctl(2) is called through ctypes, as the standard library has no interface to it.
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
_AGAIN_SECONDS = 0.02  # long enough for a destructor or a fork's hooks to be over
_OUTPUT_SECONDS = 0.3  # a launcher takes milliseconds, and some more to pass it on to the host that prints it

T = TypeVar("T")


class Interrupted(BaseException):
    """This process has to stop: save what must be saved. No `Exception`, so that no broad `except` swallows it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number  # the shell's convention: 130 for Ctrl-C, 143 for SIGTERM


def die_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process `signal_number` when process `parent` ends; SIGKILL if it has ended already.

    The kernel watches the *thread* that forked this process, so fork from the main thread.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal_number))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans(adopt: bool) -> bool:
    """Set whether orphaned descendants become children of this process (a subreaper); return the previous setting."""
    before = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))
    return bool(before.value)


def stands_still(process: int) -> bool:
    """Return whether a process is stopped (SIGSTOP, or by a debugger), by its state in proc(5)."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show (15 bytes of it)."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(text))


def fork_process(run: Callable[[], int]) -> int:
    """Fork a process that ends with the status that `run` returns; return its process id. Raises OSError."""
    process = os.fork()
    if process == 0:
        status = 128 + signal.SIGTERM
        try:
            status = run()
            with contextlib.suppress(OSError, ValueError):
                flush_output(0.0)
        finally:
            os._exit(status)  # whatever happened, the caller's stack is not ours to return into
    return process


def interrupt_on(*numbers: int) -> None:
    """Make the first of each of these signals raise `Interrupted`; with SIGTERM goes SIGHUP, unless ignored."""
    if signal.SIGTERM in numbers and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers = (*numbers, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, interrupt_once())


def interrupt_once() -> Callable[[int, FrameType | None], None]:
    """Return a signal handler that raises `Interrupted` the first time, and does nothing after that.

    PyTorch's SIGCHLD handler raises when a worker dies, as after a signal to all of a job's processes: SIGCHLD is then
    ignored. Python swallows an exception in a destructor or a fork's hooks and calls sys.unraisablehook: this function
    replaces that hook (each further handler calls the hook before it) by one that sends the signal again.
    """
    raised = False
    report_unraisable = sys.unraisablehook

    def notice(lost: sys.UnraisableHookArgs) -> None:
        nonlocal raised
        if raised and isinstance(lost.exc_value, Interrupted):
            raised = False
            _thread.start_new_thread(_signal_again, (lost.exc_value.signal_number,))
        else:
            report_unraisable(lost)

    def handle(signal_number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if not raised:
            raised = True
            signal.signal(signal.SIGCHLD, ignore)
            raise Interrupted(signal_number)

    sys.unraisablehook = notice
    return handle


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, and hold back SIGCHLD until it runs: PyTorch's handler raises when a worker has died.

    After an exception within `Thread.start` Python would not know the thread, which would then fail with a message.
    """
    if threading.current_thread() is not threading.main_thread():  # signal handlers run in the main thread only
        thread.start()
        return
    deaths: list[tuple[int, FrameType | None]] = []
    handler = signal.signal(signal.SIGCHLD, lambda *death: deaths.append(death))
    try:
        thread.start()
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if handler is None else handler)
        if deaths and callable(handler):
            handler(*deaths[-1])


def _signal_again(number: int) -> None:
    time.sleep(_AGAIN_SECONDS)
    if callable(signal.getsignal(number)) and (ident := threading.main_thread().ident) is not None:
        signal.pthread_kill(ident, number)


def ignore(signal_number: int, frame: FrameType | None) -> None:
    """Do nothing: a signal handler that replaces another.

    If SIG_DFL or SIG_IGN replaced it while a signal is pending, Python would report a "race condition". And Python
    writes signals to its wakeup descriptor only where there is a handler.
    """


def flush_output(seconds: float = _OUTPUT_SECONDS) -> None:
    """Print all that is buffered, and leave the launcher time to read and print it: an abort would overtake it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as in a service without them
            stream.flush()
    time.sleep(seconds)


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def in_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Call in a daemon thread, which does not keep the process from ending; return what it returns, or raises."""
    outcome = Future[T]()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    return outcome


class PatienceError(DlemuError):
    """A call took too long: its file system probably hangs, and would block the next call to it as well."""


def within(seconds: float, call: Callable[[], T], what: str) -> T:
    """Return what `call` returns, or raise what it raises; PatienceError when that takes longer.

    A call that blocks in the kernel, such as a `stat` of a hung file system, goes on in its thread. Use this from the
    main thread: it only waits, so Ctrl-C is handled. A SIGTERM after more than half of the wait most likely comes from
    a supervisor that missed this process because of the call: PatienceError then names `what`, too.
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
            f"{what} took {waited} {seconds:g} s (timeout_seconds): a hung file system does this; see `df` and `dmesg`"
        ) from interruption
    return outcome.result()


def comes_into_sight(is_seen: Callable[[], bool]) -> bool:
    """Return whether this host sees within 10 s what another has just made: network file systems cache folders."""
    for _ in range(50):
        if is_seen():
            return True
        time.sleep(0.2)  # five looks a second are no load for a file server
    return False
