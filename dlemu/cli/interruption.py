"""Long commands that are interrupted keep what is finished and say how to go on."""

from __future__ import annotations

import shlex
import signal
import sys

from rich.console import Console

from dlemu.cli import complain
from dlemu.comm import Interrupted, interrupt_once
from dlemu.config.published import without_secrets
from dlemu.runner.run_list import RunsPlanned
from dlemu.studies.events import SizingEvent
from dlemu.studies.progress import SizingProgress


def install_signal_handlers() -> None:
    """Have SIGINT and SIGTERM raise `Interrupted`, once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once())


def interrupted(stop: Interrupted, finished: str, folder: str) -> int:
    """Say on stderr what is kept and how to go on; return the exit status."""
    complain(f"interrupted by {signal.Signals(stop.signal_number).name}; {finished} are kept: {resume_advice(folder)}")
    return stop.exit_status


def resume_advice(folder: str) -> str:
    """Return advice with this command line, and the folder of what is finished."""
    words = [word for word in without_secrets(sys.argv[1:]) if not word.startswith("output.folder=")]
    return f"continue with `{shlex.join(['dlemu', *words, f'output.folder={folder}'])}`"


class Watched:
    """Shows a search or a sweep; from its first event on, signals to stop leave what is finished."""

    folder = ""
    """Where the answer goes, once it has begun."""
    wants_page = True

    def __init__(self) -> None:
        self._show = SizingProgress(Console(stderr=True))

    def __call__(self, event: SizingEvent) -> None:
        """Show an event."""
        if isinstance(event, RunsPlanned):
            self.folder, self.wants_page = event.folder, event.wants_page
            install_signal_handlers()
        self._show(event)
