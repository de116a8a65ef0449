"""Runs one after another, with an answer file that is saved after each, so that an interrupted list can go on.

A study (a sweep, a search, a document, a rehearsal, a packing at several points) defines its runs, how to run one, and
its answer; this module decides which have finished, which have failed and which are missing.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from datagen import owned
from datagen.errors import DlemuError, UserError
from dlemu.results.answer_files import read_answer, save_answer
from dlemu.runner.run_folder import check_place


class Answer(Protocol):
    """The content of a list's answer file, besides its runs."""

    @property
    def complete(self) -> bool:
        """False while the list goes on, or when it was interrupted."""

    @property
    def question(self) -> Any:
        """A dataclass with what was asked for; only a list with an equal question may be continued."""


What = TypeVar("What")
Run = TypeVar("Run")
A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, kw_only=True)
class Planned(Generic[What]):
    """One run of a list."""

    what: What
    """The study's own description of the run."""
    name: str
    """Name of its folder, unless that is taken."""
    label: str
    """Description for the progress line."""
    settings: Mapping[str, str]
    """KEY -> VALUE of the settings in which it differs from other runs."""


@dataclass(frozen=True, kw_only=True)
class RunsPlanned:
    """All checks have passed; no run has begun."""

    folder: str
    runs: int | None
    """Number of runs; None where results decide what is run next."""
    finished_runs: int
    """Runs that an interrupted list had finished before."""
    wants_page: bool = True
    """The workload's `output.report`."""


@dataclass(frozen=True, kw_only=True)
class RunBegan:
    """A run begins."""

    label: str
    """Description for the progress line."""
    settings: Mapping[str, str]
    """KEY -> VALUE of the settings in which it differs from other runs."""


@dataclass(frozen=True, kw_only=True)
class RunEnded(Generic[Run, A]):
    """A run has ended and is recorded in the answer file; it may have failed."""

    run: Run
    answer: A
    """The answer so far."""


class RunList(ABC, Generic[What, Run, A]):
    """The runs of one study in one folder; `runs` are those recorded in its answer file."""

    file: ClassVar[str]
    """Name of the answer file."""
    noun: ClassVar[str]
    """What messages call it, such as `sweep`."""
    shown_by: ClassVar[str] = "report"
    """The command that shows a finished one."""
    setting: ClassVar[str] = "output.folder"
    """The setting, or option, for its folder."""
    runs_in: ClassVar[str]
    """The answer's field that contains the runs."""
    answer_type: type[A]
    goes_on = False
    """A failed run does not stop the list, and is run again when the list is continued."""

    def __init__(
        self,
        folder: str,
        question: Any,
        planned: Sequence[Planned[What]],
        on_event: Callable[[RunsPlanned | RunBegan | RunEnded[Run, A]], object],
    ) -> None:
        self.folder, self.question, self.planned = folder, question, planned
        self.runs: list[Run] = []
        self.on_event = on_event

    @abstractmethod
    def answer(self, *, complete: bool) -> A:
        """Return the answer from the runs so far."""

    @abstractmethod
    def start(self, planned: Planned[What], folder: str) -> Run:
        """Run one in a folder and return its record; raises DlemuError with its message."""

    def is_of(self, run: Run, planned: Planned[What]) -> bool:
        """Return whether a recorded run is the planned one: by default, whether it has the same settings."""
        return getattr(run, "settings", None) == planned.settings

    def is_done(self, run: Run) -> bool:
        """Return whether a recorded run need not run again: it has no `failure`."""
        return getattr(run, "failure", None) is None

    def failed(self, planned: Planned[What], folder: str, error: DlemuError) -> Run | None:
        """Return the record of a run that raised; None: then nothing is recorded, and the error ends the list."""
        return None

    def make_folder(self, planned: Planned[What]) -> str:
        """Return a folder for a run that is about to begin."""
        return owned.fresh_folder(self.folder, planned.name)

    @property
    def missing(self) -> list[Planned[What]]:
        """The planned runs that are not done."""
        return [
            planned
            for planned in self.planned
            if not any(self.is_of(run, planned) and self.is_done(run) for run in self.runs)
        ]

    def read(self) -> A | None:
        """Return the answer in the folder, None where there is none; raises UserError for a damaged one."""
        return read_answer(self.folder, self.file, self.answer_type)

    def resume(self) -> None:
        """Continue with the runs of an interrupted list that has an equal question.

        Raises UserError for a folder with a finished list, one with another question, or files that are not dlemu's.
        """
        check_place(self.folder, setting=self.setting, ours=(self.file,))
        saved = self.read()
        if saved is None:
            return
        runs: Sequence[Run] = getattr(saved, self.runs_in)
        self.runs = [run for run in runs if self.is_done(run) or not self.goes_on]
        if saved.complete and len(self.runs) == len(runs):
            raise UserError(
                f"{self.folder} holds a finished {self.noun}; set {self.setting} to a new folder, or view it with "
                f"`dlemu {self.shown_by} {shlex.quote(self.folder)}`"
            )
        before, now = asdict(saved.question), asdict(self.question)
        differing = [f"{key} was {before[key]!r}, is {now[key]!r}" for key in now if before[key] != now[key]]
        if differing:
            raise UserError(
                f"{self.folder} holds an interrupted {self.noun} with other settings ({'; '.join(differing)}); "
                f"set {self.setting} to a new folder"
            )

    def run_missing(self, *, wants_page: bool = True) -> A:
        """Run what is missing, and return the answer.

        Raises what a run raised unless the list goes on after failures; finished runs are saved.
        """
        missing = self.missing
        finished = len(self.planned) - len(missing)
        self.on_event(
            RunsPlanned(folder=self.folder, runs=len(self.planned), finished_runs=finished, wants_page=wants_page)
        )
        for planned in missing:
            self.run_one(planned)
        return self.save(complete=True)

    def run_one(self, planned: Planned[What]) -> Run:
        """Run one, record it and save the answer; raises what it raised unless the list goes on after failures."""
        self.on_event(RunBegan(label=planned.label, settings=planned.settings))
        folder = self.make_folder(planned)
        try:
            run = self.start(planned, folder)
        except DlemuError as error:
            failed = self.failed(planned, folder, error)
            if failed is None:
                raise
            self.keep(failed)
            if not self.goes_on:
                raise
            return failed
        self.keep(run)
        return run

    def keep(self, run: Run) -> None:
        """Record a run, in the order of the plan, and save the answer."""
        self.runs = sorted([*self.runs, run], key=self._place)
        self.on_event(RunEnded(run=run, answer=self.save(complete=False)))

    def _place(self, run: Run) -> int:
        return next((place for place, planned in enumerate(self.planned) if self.is_of(run, planned)), -1)

    def save(self, *, complete: bool) -> A:
        """Save the answer, and return it; raises SpaceError."""
        answer = self.answer(complete=complete)
        save_answer(self.folder, self.file, answer)
        return answer
