"""A run's folder: its name, how it is made, and how it goes when nothing was measured."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from datetime import datetime

from datagen.errors import SpaceError
from dlemu.emulator.checkpoint_journal import CheckpointJournal
from dlemu.emulator.journal import Journal, read_journal
from dlemu.results.live import goes_on
from dlemu.results.live_place import LIVE


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: str
    made: tuple[str, ...]
    """Folders that were made for it, the outermost first: those that were there before are not ours to remove."""

    def drop(self) -> None:
        """Remove the folder of a run that measured nothing, with what was made for it and holds nothing else."""
        drop_live(self.path)
        for folder in reversed(self.made):
            with contextlib.suppress(OSError):  # something else lies there now; it stays
                os.rmdir(folder)


def new_folder(name: str, prefix: str = "") -> str:
    """Return results/NAME/PREFIXTIME-PROCESS, with a number behind it when one process begins two runs in a second.

    The process's id keeps apart runs that begin at once: each would see that the folder is not there yet.
    """
    first = os.path.join("results", name, f"{prefix}{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}")
    folder, number = first, 1
    while os.path.exists(folder):
        number += 1
        folder = f"{first}-{number}"
    return folder


def check_folder(folder: str) -> None:
    """Raise SpaceError for the folder of another run (everything in it belongs to one), or one that can't be made."""
    if any(os.path.exists(os.path.join(folder, name)) for name in ("summary.json", "facts.json")):
        raise SpaceError(f"{folder} holds the results of another run; set output.folder to a new folder")
    if goes_on(folder):
        raise SpaceError(f"{folder} is that of another run, which still goes on; set output.folder to a new folder")
    live = os.path.join(folder, LIVE)
    if any(read_journal(live, kind) is not None for kind in (Journal, CheckpointJournal)):
        raise SpaceError(
            f"{folder} holds what another run had measured before it was killed: `dlemu report {folder}` shows it; set "
            "output.folder to a new folder"
        )
    missing = _missing(folder)
    above = os.path.dirname(missing[0]) if missing else folder
    if not (os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK)):
        reason = "may not be written" if os.path.isdir(above) else "is no folder"
        raise SpaceError(
            f"the results folder {folder} can't be made: {above} {reason}; set output.folder to a folder you may write"
        )


def make_folder(folder: str) -> RunFolder:
    """Make a run's folder with its live part; raises SpaceError when it can't be written, or is another run's."""
    check_folder(folder)
    missing = _missing(folder)
    try:
        os.makedirs(os.path.join(folder, LIVE), exist_ok=True)
    except OSError as error:
        RunFolder(folder, missing).drop()
        raise SpaceError(
            f"the results folder {folder} can't be made: {error.strerror}; set output.folder to a folder you may write"
        ) from error
    return RunFolder(folder, missing)


def _missing(folder: str) -> tuple[str, ...]:
    """Return the folder and those above it that are not there, the outermost first."""
    missing: list[str] = []
    path = os.path.abspath(folder)
    while not os.path.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return tuple(reversed(missing))


def drop_live(folder: str) -> None:
    """Remove the live part once its content stands in steps.parquet and summary.json."""
    shutil.rmtree(os.path.join(folder, LIVE), ignore_errors=True)
