"""A run's `Job`, and the folder of a run: its name, checks, creation, and removal if nothing was measured.

While the run is active, the subfolder `live` has the logs of its ranks and the counts of its requests to an object
store. Another process stops the run by a file there: once rank 0 notices it, all ranks end after the current step.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from datagen import owned
from datagen.errors import SpaceError, UserError
from datagen.owned import OwnFolder, check_usable, create_new, missing_folders, take_folder
from datagen.storage._request_counts import read_counts, remove_counts
from datagen.storage.storage_base import StorageSpec
from dlemu.config.schema import Workload
from dlemu.config.validate import check_model_name
from dlemu.results import FACTS, LIVE, README
from dlemu.results.kinds import kind_of, kinds
from dlemu.results.live import JOURNAL, LOCK, RunJournal, is_in_progress, read_journal, report_command
from dlemu.telemetry._readings import log_path

STOP = "stop"  # name of the file that stops a run
_STOP_CHECK_SECONDS = 0.2  # interval of checks for that file: a check after each step would burden a file server


@dataclass(frozen=True, kw_only=True)
class Job:
    """A complete, checked description of a run; picklable, and equal on all ranks."""

    workload: Workload
    ranks: int
    seed: int
    """Seed of all random choices: shuffling, times, data."""
    folder: str = ""
    """The run's folder; set by `dlemu.runner.job.prepare`, as `started_at` is."""
    started_at: str = ""
    """ISO 8601 with time zone."""

    @property
    def live_folder(self) -> str:
        """Folder of the ranks' logs while they run."""
        return os.path.join(self.folder, LIVE)

    def live_path(self, name: str) -> str:
        """Return the path of a file in the live folder; empty on a host that does not share this folder."""
        return os.path.join(self.live_folder, name) if os.path.isdir(self.live_folder) else ""

    @property
    def timeout_seconds(self) -> float:
        """How long ranks wait for each other."""
        return self.workload.timeout_seconds

    @property
    def storage_spec(self) -> StorageSpec:
        """The storage as ranks and workers open it, so that its requests to an object store are counted."""
        return replace(self.workload.storage_spec, account=request_folder(self.live_folder))


@dataclass(frozen=True)
class Kept:
    """The saved measurements of a failed run, in a folder like that of any run but marked incomplete."""

    folder: str
    sentence: str  # tells the user what was saved, and what was removed from the storage or left there


@dataclass(frozen=True)
class Unfinished:
    """Useless files that a killed run left in the storage."""

    what: str  # phrase that names their place and size
    remove: Callable[[], None]  # removes these files, and no others; raises UserError, OSError


def new_folder(name: str, prefix: str = "") -> str:
    """Return the path results/NAME/PREFIXTIME-PID, or that with -2, -3, ... if it exists; UserError for a bad name."""
    check_model_name(name)
    first = os.path.join("results", name, f"{prefix}{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}")
    return next(folder for folder in owned.numbered(first) if not os.path.exists(folder))


def check_place(folder: str, *, setting: str = "output.folder") -> None:
    """Check that a folder can be made or written to, and has no other program's files; raises UserError, SpaceError."""
    check_usable(folder, setting)
    missing = missing_folders(folder)
    parent = os.path.dirname(missing[0]) if missing else folder
    if not os.path.isdir(parent):
        problem = f"{parent} is not a folder"
    elif not os.access(parent, os.W_OK | os.X_OK):
        problem = f"{parent} can't be written"
    else:
        return
    raise SpaceError(f"the results folder {folder} can't be made: {problem}; set {setting} to a writable folder")


def check_new(folder: str, setting: str = "output.folder") -> None:
    """Check that a folder can take a result that is no run: `check_place`, and UserError if it has a result already."""
    kind = kind_of(folder)
    if kind is not None:
        raise UserError(f"{folder} holds another result, {kind.noun}; set {setting} to a new folder")
    check_place(folder, setting=setting)


def check_run_folder(folder: str) -> None:
    """Check that a folder can take a run: `check_place`, and SpaceError for a result or an active or killed run."""
    live = os.path.join(folder, LIVE)
    problem = ""
    try:
        if os.path.exists(os.path.join(folder, FACTS)) or any(kind.holds(folder) for kind in kinds()):
            problem = "holds another result"
        elif is_in_progress(folder):
            problem = "belongs to another run, which is still active"
        elif read_journal(live, RunJournal) is not None:
            problem = f"holds what a run measured before it was killed: `{report_command(folder)}` shows it"
    except (OSError, ValueError, RecursionError) as error:
        raise SpaceError(f"{live} can't be read ({error}); set output.folder to a new folder") from error
    if problem:
        raise SpaceError(f"{folder} {problem}; set output.folder to a new folder")
    check_place(folder)


def make_folder(
    folder: str, ranks: int, live_names: Sequence[str] = (), *, storage_folder: str | None = None
) -> OwnFolder:
    """Create a run's folder and its live folder; raises SpaceError if that is impossible or another run has the folder.

    `live_names` are the files that the ranks will write into the live folder. This process claims them (lists them as
    dlemu's own) for all hosts, because lines could get lost if several hosts appended to one list. If the run later
    creates `storage_folder`, that is removed together with the run's folder.
    """
    check_run_folder(folder)
    missing = missing_folders(storage_folder) if storage_folder else ()
    own_folder = take_folder(folder, "output.folder")
    own_folder = replace(own_folder, made=tuple(sorted({*own_folder.made, *missing}, key=len)))
    live = os.path.join(folder, LIVE)
    telemetry_logs = [log_path("", node) for node in range(ranks)]  # there are no more hosts than ranks
    try:
        drop_live(folder)  # left by a run that was killed before it measured anything
        owned.claim(folder, LIVE + "/")
        os.mkdir(live)
        owned.claim(live, LOCK, FACTS, STOP, JOURNAL, README, *telemetry_logs, *live_names)
    except FileExistsError as error:
        raise SpaceError(
            f"{live} holds files that this run did not make; set output.folder to a new or empty folder"
        ) from error
    except OSError as error:
        drop_folder(own_folder)
        raise SpaceError(
            f"the results folder {folder} can't be made: {error.strerror}; set output.folder to a writable folder"
        ) from error
    return own_folder


def drop_folder(folder: OwnFolder) -> None:
    """Remove the folder of a run that measured nothing, and the folders created for it if they are empty."""
    drop_live(folder.path)
    folder.drop()


def drop_live(folder: str) -> None:
    """Remove the live folder of a run that has saved its result or has measured nothing."""
    live = os.path.join(folder, LIVE)
    requests = request_folder(live)
    if os.path.isdir(requests) and LIVE + "/" in owned.claimed(folder):
        remove_counts(requests)
    owned.remove_claimed(live)


def requests_so_far(live_folder: str) -> tuple[int, ...]:
    """Return how many requests to an object store a run has made, as `RequestCounts.values`; () if it made none."""
    counts = read_counts(request_folder(live_folder))
    return tuple(counts.values.tolist()) if counts.requests else ()


def request_folder(live_folder: str) -> str:
    return os.path.join(live_folder, "requests")


def request_stop(live_folder: str) -> None:
    """Make the run with this live folder end after its current step; do nothing if it has already ended."""
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        os.close(create_new(os.path.join(live_folder, STOP)))


class StopFile:
    """Tells after each step whether the run is to stop. It looks for the file at most five times a second."""

    def __init__(self, live_folder: str) -> None:
        self._path = os.path.join(live_folder, STOP)
        self._due_seconds = 0.0

    def __call__(self) -> bool:
        now_seconds = time.monotonic()
        if now_seconds < self._due_seconds:
            return False
        self._due_seconds = now_seconds + _STOP_CHECK_SECONDS
        return os.path.exists(self._path)
