"""Interruption of long commands: finished parts are kept, and a message says how to continue."""

from __future__ import annotations

import shlex
import signal
import sys

from rich.console import Console

from datagen.errors import SpaceError
from dlemu.cli import complain
from dlemu.comm import Interrupted, interrupt_on
from dlemu.config.literal import override
from dlemu.config.overrides import take_word
from dlemu.config.published import without_secrets
from dlemu.runner.run_list import RunsPlanned
from dlemu.studies.events import SizingEvent
from dlemu.studies.progress import SizingProgress


def interrupted(stop: Interrupted, finished: str, folder: str) -> int:
    """Print on stderr what is kept and how to continue; return the exit status."""
    complain(f"interrupted by {signal.Signals(stop.signal_number).name}; {finished} are kept: {resume_advice(folder)}")
    return stop.exit_status


def out_of_space(error: SpaceError, finished: str, folder: str) -> SpaceError:
    """Return an error that also says how to continue once there is space; the same if nothing had begun."""
    if not folder:
        return error
    return SpaceError(f"{error}; {finished} are kept: once there is space, {resume_advice(folder)}")


def resume_advice(folder: str) -> str:
    """Return advice to repeat this command with the folder of the finished parts."""
    _, words = take_word(without_secrets(sys.argv[1:]), "output.folder")
    return f"continue with `{shlex.join(['dlemu', *words, override(('output', 'folder'), folder)])}`"


class Watched:
    """Shows the events of a search or a sweep; from the first one on, SIGINT and SIGTERM keep finished parts."""

    folder = ""
    """Folder of the answer, once it has begun."""
    wants_page = True

    def __init__(self) -> None:
        self._show = SizingProgress(Console(stderr=True))

    def __call__(self, event: SizingEvent) -> None:
        """Show an event."""
        if isinstance(event, RunsPlanned):
            self.folder, self.wants_page = event.folder, event.wants_page
            interrupt_on(signal.SIGINT, signal.SIGTERM)
        self._show(event)
