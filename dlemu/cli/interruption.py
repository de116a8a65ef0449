"""Long commands: their progress, and their interruption, which keeps finished parts and says how to continue."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from datagen.errors import SpaceError
from datagen.withheld import without_secrets
from dlemu.cli import complain
from dlemu.cli.frontends import Terminal
from dlemu.config.overrides import override, take_word
from dlemu.ranks import Interrupted, interrupt_on
from dlemu.report.table import Cell, Line, print_lines
from dlemu.report.units import number, with_uncertainty
from dlemu.results.wording import count
from dlemu.runner.run_list import Planned, RunEnded, RunsPlanned
from dlemu.studies.answers import SweepPoint, Trial
from dlemu.studies.prerequisites import SizingEvent


class Watched(Terminal):
    """Shows the events of a search or a sweep on stderr too, a line for each trial or point.

    Once the runs are planned, SIGINT and SIGTERM keep finished parts.
    """

    folder = ""
    """Folder of the answer; empty until its runs are planned: nothing is kept before."""
    wants_page = True

    def __init__(self, option: str = "") -> None:
        """`option` is the command's option for the folder, if the folder is not the setting output.folder."""
        super().__init__()
        self._option = option

    def __call__(self, event: SizingEvent | RunEnded[Any, Any]) -> None:
        if not isinstance(event, RunsPlanned | Planned | RunEnded):
            super().__call__(event)
            return
        self._lines.leave()
        if isinstance(event, RunsPlanned):
            self.folder = event.folder
            self.wants_page = event.wants_page
            interrupt_on(signal.SIGINT, signal.SIGTERM)
            self._print(f"results: {event.folder}")
        match event:
            case RunsPlanned(runs=None) if event.finished_runs:
                self._print(f"continuing after {count(event.finished_runs, 'finished run')}")
            case RunsPlanned(runs=int(runs)) if runs > 1:
                self._print(f"{count(runs, 'run')}, {event.finished_runs} of them done")
            case Planned():
                self._print(f"{event.label} ...")
            case RunEnded(run=Trial() as trial):
                au = with_uncertainty(trial.au_sustained_percent, trial.half_width_percent)
                state = "decided" if trial.settled else "open"
                self._print(f"  AU {au} ({state}), {number(trial.mb_per_second)} MB/s, {trial.seconds:.0f} s")
                if trial.page_cache_warning:
                    self._print(Line(f"  {trial.page_cache_warning}", "caution"))
            case RunEnded(run=SweepPoint() as point):
                self._print(f"  {point.figures.verdict if point.figures else f'failed: {point.failure}'}")

    @contextlib.contextmanager
    def keeping(self, finished: str) -> Iterator[None]:
        """On an interruption, or without space, say that `finished` (such as trials) are kept, and how to continue."""
        try:
            yield
        except (Interrupted, SpaceError) as error:
            if not self.folder:
                raise
            how = self._how_to_continue()
            if isinstance(error, SpaceError):
                raise SpaceError(f"{error}; {finished} are kept: once there is space, {how}") from error
            complain(f"{error}; {finished} are kept: {how}")
            raise SystemExit(error.exit_status) from None

    def _how_to_continue(self) -> str:
        """Return advice to repeat this command with the folder of the finished parts."""
        if self._option:
            return f"repeat the command with {self._option} {self.folder}"
        _, words = take_word(without_secrets(sys.argv[1:]), "output.folder")
        return f"continue with `{shlex.join(['dlemu', *words, override(('output', 'folder'), self.folder)])}`"

    def _print(self, line: Cell) -> None:
        print_lines([line], Console(stderr=True))
