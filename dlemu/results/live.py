"""The folder `live/` of a run that is not saved yet, from which the run can be read even if it was killed.

The facts are written before the first step, the journal and the step logs while the run goes on. A run in progress
holds a lock: its folder is not a result yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from datagen.atomic import write_text
from datagen.errors import UserError
from dlemu.comm.cgroup_limits import host_memory
from dlemu.results.file_names import FACTS, LIVE

T = TypeVar("T")

LOCK = "lock"
"""File that is locked while the run goes on."""


def write_live_facts(folder: str, facts: object, *, advice: str) -> None:
    """Write what is known of a run before its ranks start; raises SpaceError, whose message ends with `advice`."""
    write_text(os.path.join(folder, LIVE), FACTS, msgspec.json.encode(facts).decode(), advice=advice)


@contextlib.contextmanager
def going_on(folder: str) -> Iterator[None]:
    """Mark the run as in progress until this process and all that it forks inside have ended."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a full disk, or a file system without locks: then it is not marked
            path = os.path.join(folder, LIVE, LOCK)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = stack.enter_context(open(os.open(path, flags, 0o644), "w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def goes_on(folder: str) -> bool:
    """Return whether the run in the folder is in progress, as far as this host can tell."""
    try:
        descriptor = os.open(os.path.join(folder, LIVE, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def salvaged(folder: str, salvage: Callable[[str], T]) -> T:
    """Return what `salvage` reads from a run's live folder.

    Raises UserError when the run is still in progress, and for a folder that is damaged, or larger than memory.
    """
    if goes_on(folder):
        raise UserError(f"the run in {folder} is still running: wait for it to end, or stop it with Ctrl-C")
    live = os.path.join(folder, LIVE)
    try:
        sizes = [os.stat(os.path.join(live, name)) for name in os.listdir(live)]
    except OSError as error:
        raise UserError(f"{live} can't be read: {error.strerror}; copy the folder again") from error
    if not all(stat.S_ISREG(status.st_mode) for status in sizes):
        raise UserError(f"{live} holds something that is not a file, and not dlemu's: remove it")
    wanted = 2 * sum(status.st_size for status in sizes)  # the logs, and a copy of them in one table
    if wanted > host_memory().available_bytes:
        raise UserError(f"{live} needs {wanted / 2**30:.1f} GiB of memory, more than is free: read it on another host")
    try:
        return salvage(live)
    except (LookupError, OSError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{live} is damaged ({error}): copy the folder again") from error
