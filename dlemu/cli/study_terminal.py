"""The terminal of a study, a command that makes several runs: shows each run, and how to continue if interrupted."""

from __future__ import annotations

import shlex
import signal
from typing import Self

from rich.console import Console

from datagen.errors import SpaceError
from dlemu.cli import complain
from dlemu.cli.frontends import Terminal
from dlemu.ranks import Interrupted, interrupt_on
from dlemu.report.table import Cell, Line, print_lines
from dlemu.report.units import number, with_uncertainty
from dlemu.results.wording import count
from dlemu.runner.run_list import Planned, RunEnded, RunsPlanned
from dlemu.studies.answers import SweepPoint, Trial


class StudyTerminal(Terminal):
    """A terminal that also shows a search or a sweep, with a line on stderr for each of its runs."""

    folder = ""  # the study's folder, which keeps finished runs; empty until the runs are planned
    wants_page = True  # whether the command is to make a page of the answer (`output.report`)

    def __init__(self, folder_option: str = "output.folder=") -> None:
        """`folder_option` is the prefix of the command-line argument that sets the study's folder."""
        super().__init__()
        self._folder_option = folder_option

    def __call__(self, event: object) -> None:
        super().__call__(event)
        match event:
            case RunsPlanned(runs=runs, finished_runs=finished):
                self.folder = event.folder
                self.wants_page = event.wants_page
                interrupt_on(signal.SIGINT, signal.SIGTERM)  # from now on there are runs to continue: see `__exit__`
                self._print(f"results: {self.folder}")
                if runs is None and finished:  # a search, in which each result determines the next run
                    self._print(f"continuing after {count(finished, 'finished run')}")
                elif runs is not None and runs > 1:
                    self._print(f"{count(runs, 'run')}, {finished} of them done")
            case Planned():
                self._print(f"{event.label} ...")
            case RunEnded(run=Trial() as trial):
                au = with_uncertainty(trial.sustained.au_percent, trial.sustained.half_width_percent)
                self._print(f"  AU {au}, {number(trial.mb_per_second)} MB/s, {trial.seconds:.0f} s")
                if trial.page_cache_warning:
                    self._print(Line(f"  {trial.page_cache_warning}", "caution"))
            case RunEnded(run=SweepPoint() as point):
                outcome = point.figures.verdict if point.figures else f"failed: {point.failure}"
                self._print(f"  {outcome}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """If SIGINT, SIGTERM or a full disk ended the study, say that finished runs are kept and how to continue."""
        if not self.folder or not isinstance(error, Interrupted | SpaceError):
            return
        advice = f"repeat the command with {self._folder_option}{shlex.quote(self.folder)}"
        if isinstance(error, SpaceError):
            raise SpaceError(f"{error}; finished runs are kept: once there is space, {advice}") from error
        complain(f"{error}; finished runs are kept: {advice}")
        raise SystemExit(error.exit_status) from None

    def _print(self, line: Cell) -> None:
        print_lines([line], Console(stderr=True))
