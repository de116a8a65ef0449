"""Prints the progress of a search or a sweep on the terminal: a line for each trial or point."""

from __future__ import annotations

from rich.console import Console

from dlemu.metrics.t_interval import plus_minus
from dlemu.report.table import Cell, Line, print_lines
from dlemu.report.units import number, size
from dlemu.results.wording import count
from dlemu.runner.run_list import RunBegan, RunEnded, RunsPlanned
from dlemu.studies.answers import SweepPoint, Trial
from dlemu.studies.events import SearchBegan, SizingEvent, StorageProbed

_PAGE_CACHE = {
    "direct": "read with O_DIRECT, bypassing the page cache",
    "remote": "read over the network, not cached on this host",
    "large": "five times the memory of this host or more",
    "evicted": "dropped from the page cache before each epoch",
    "cached": "the page cache may serve reads: this sizes memory as much as storage",
}


class SizingProgress:
    """Shows the events of a search or a sweep."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, event: SizingEvent) -> None:
        """Show an event."""
        match event:
            case SearchBegan():
                self._show_search(event)
            case StorageProbed():
                self._print(
                    f"read probe: {number(event.probe_mb_per_second)} MB/s; one accelerator needs "
                    f"{number(event.mb_per_accelerator)} MB/s; predicted: {event.predicted_accelerators} pass"
                )
            case RunsPlanned():
                points = "" if event.runs is None else f"{event.runs} points, {event.finished_runs} of them done"
                self._print(f"results: {event.folder}" + (points and f"; {points}"))
            case RunBegan():
                self._print(f"{event.label} ...")
            case RunEnded(run=Trial() as trial):
                self._show_trial(trial)
            case RunEnded(run=SweepPoint() as point):
                self._print(f"  {point.figures.verdict if point.figures else f'failed: {point.failure}'}")

    def _show_search(self, began: SearchBegan) -> None:
        self._print(f"results: {began.folder}")
        self._print(
            f"dataset: {size(began.total_bytes)}, {_PAGE_CACHE[began.page_cache]}; enough for "
            f"{count(began.capacity.most, 'accelerator')}"
        )
        if began.finished_runs:
            self._print(f"continuing after {count(began.finished_runs, 'finished trial')}")

    def _show_trial(self, trial: Trial) -> None:
        au = trial.au_sustained_percent
        self._print(
            f"  au {au:.2f} % {plus_minus(au, trial.half_width_percent, 2)} "
            f"({'decided' if trial.settled else 'open'}), {number(trial.app_mb_per_second)} MB/s, {trial.seconds:.0f} s"
        )
        if trial.page_cache_warning:
            self._print(Line(f"  {trial.page_cache_warning}", "caution"))

    def _print(self, line: Cell) -> None:
        print_lines([line], self._console)
