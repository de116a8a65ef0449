"""log.txt of a run: the command, and the result as printed on a terminal."""

from __future__ import annotations

import contextlib
import io

from rich.console import Console

from datagen.atomic import write_text
from datagen.errors import UserError
from dlemu.report.any_run import show
from dlemu.results.file_names import ADVICE
from dlemu.results.kinds import kind_named, kind_wanted
from dlemu.runner.events import Event, JobBegan, OnEvent, Saved


def log_writer(command: str) -> OnEvent:
    """Return an event handler that writes log.txt when a run is saved; `command` is its first line."""

    def write(event: Event) -> None:
        if isinstance(event, Saved):
            run, text = event.run, io.StringIO()
            show(kind_named(run.facts.kind), run.summary, run.folder, Console(width=100, file=text), details=True)
            write_text(run.folder, "log.txt", f"$ {command}\n\n{text.getvalue()}", advice=ADVICE)
        elif isinstance(event, JobBegan):
            # Rank 0, which is forked next, and then this process show the result: they share what that imports.
            with contextlib.suppress(UserError):  # of an explicit kind of job the settings may not speak
                kind_wanted(event.workload).load()

    return write
