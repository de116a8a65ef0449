"""Cases at one interface, in a process of their own: a crash, a hang or too much memory is a finding with its seed."""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import signal
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType

from tests.fuzzing.interfaces import MOST_BYTES, MOST_SECONDS, interfaces


class _TooLongError(BaseException):
    """Not an `Exception`, so that no broad `except` takes it for its own."""


def round_of(interface: str, seed: int, cases: range, folder: Path) -> list[str]:
    """Try cases at an interface; return what went wrong, a text for each case. Equal arguments do equal things."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reader)
        status = 1
        try:
            with open(writer, "w") as told:
                _try(interface, seed, cases, folder, told.write, told.flush)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, errors="replace") as told:
        lines = told.read().split("\0")
    _, status = os.waitpid(process, 0)
    findings = [line[1:] for line in lines if line.startswith("!")]
    if status:
        last = next((line for line in reversed(lines) if line.startswith("@")), "@?")
        findings.append(f"{interface} seed {seed} case {last[1:]}: the process ended with wait status {status}")
    return findings


def _try(interface: str, seed: int, cases: range, folder: Path, write: object, flush: object) -> None:
    assert callable(write)
    assert callable(flush)
    warnings.simplefilter("ignore")
    faulthandler.disable()  # a crash is told by its wait status
    case = interfaces()[interface](folder)
    signal.signal(signal.SIGALRM, _too_long)
    used = _resident_bytes()
    for number in cases:
        write(f"@{number}\0")
        flush()
        begun = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 4 * MOST_SECONDS)
        try:
            case(random.Random(f"{interface} {seed} {number}"))
            what = ""
        except _TooLongError:
            what = "hangs"
        except Exception:
            what = traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        seconds, grown = time.monotonic() - begun, _resident_bytes() - used
        if not what and seconds > MOST_SECONDS:
            what = f"took {seconds:.1f} s"
        if not what and grown > MOST_BYTES:
            what = f"took {grown >> 20} MiB"
        if grown > MOST_BYTES:
            used += grown  # whatever else was wrong: the next case is not to blame for it
        if what:
            write(f"!{interface} seed {seed} case {number}: {what}\0")


def _too_long(signal_number: int, frame: FrameType | None) -> None:
    raise _TooLongError


def _resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
