"""Child runs one after another, with an answer that is saved after each: an interrupted list goes on with the others.

A study (a sweep, a search, a document, a rehearsal, a packing at several points) says what its runs are, how one is run
and what its answer is; what is finished, what failed and what is missing is decided here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from datagen import owned
from datagen.errors import DlemuError, UserError
from dlemu.results.answer_files import read_answer, save_answer
from dlemu.runner.run_folder import check_place


class Answer(Protocol):
    """What the file of a list holds, beside its runs."""

    @property
    def complete(self) -> bool:
        """False while the list goes on, or when it was interrupted."""

    @property
    def question(self) -> Any:
        """A dataclass: the question. Lists with equal questions may share their runs."""


What = TypeVar("What")
Run = TypeVar("Run")
A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, kw_only=True)
class Planned(Generic[What]):
    """One run of a list."""

    what: What
    """What the study runs."""
    name: str
    """Of its folder, unless something has that already."""
    label: str
    """In words, for whoever waits."""
    settings: Mapping[str, str]
    """KEY -> VALUE of what it has of its own."""


@dataclass(frozen=True, kw_only=True)
class RunsPlanned:
    """Everything is checked; no run has begun."""

    folder: str
    runs: int | None
    """None where each run decides what the next one is."""
    finished_runs: int
    """Of an interrupted list that goes on."""
    wants_page: bool = True
    """The workload's `output.report`."""


@dataclass(frozen=True, kw_only=True)
class RunBegan:
    """A run begins."""

    label: str
    """In words."""
    settings: Mapping[str, str]
    """KEY -> VALUE of what it has of its own."""


@dataclass(frozen=True, kw_only=True)
class RunEnded(Generic[Run, A]):
    """A run has ended, and is saved; it may have failed."""

    run: Run
    answer: A
    """What is known so far."""


class RunList(ABC, Generic[What, Run, A]):
    """The runs of one study in one folder; `runs` are those on record."""

    file: ClassVar[str]
    """Of the answer."""
    noun: ClassVar[str]
    """`sweep`."""
    shown_by: ClassVar[str] = "report"
    """The command that shows a finished one."""
    setting: ClassVar[str] = "output.folder"
    """The setting, or option, of its folder."""
    runs_in: ClassVar[str]
    """The answer's field with the runs on record."""
    answer_type: type[A]
    goes_on = False
    """The others run where one has failed, and failed ones run again."""

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
        """Return the answer by the runs on record."""

    @abstractmethod
    def start(self, planned: Planned[What], folder: str) -> Run:
        """Run one in a folder; raises DlemuError with its message."""

    def is_of(self, run: Run, planned: Planned[What]) -> bool:
        """Return whether a run on record is the planned one: by its settings, where it has any."""
        return getattr(run, "settings", None) == planned.settings

    def is_done(self, run: Run) -> bool:
        """Return whether a run on record need not run again: it has no `failure`."""
        return getattr(run, "failure", None) is None

    def failed(self, planned: Planned[What], folder: str, error: DlemuError) -> Run | None:
        """Return what goes on record of a run that raised; None for nothing: then the error ends the list."""
        return None

    def make_folder(self, planned: Planned[What]) -> str:
        """Return the folder of a run that begins."""
        return owned.fresh_folder(self.folder, planned.name)

    @property
    def missing(self) -> list[Planned[What]]:
        """What is planned and not done."""
        return [
            planned
            for planned in self.planned
            if not any(self.is_of(run, planned) and self.is_done(run) for run in self.runs)
        ]

    def read(self) -> A | None:
        """Return the answer on record, None where there is none; raises UserError for a damaged one."""
        return read_answer(self.folder, self.file, self.answer_type)

    def resume(self) -> None:
        """Take over the runs of an interrupted list of the same question.

        Raises UserError for a folder that holds a finished list, one of another question, or somebody else's files.
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
                f"`dlemu {self.shown_by} {self.folder}`"
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

        Raises what a run raised where the list does not go on after it; what is finished is saved.
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
        """Run one, put it on record and save that; raises what it raised where the list does not go on after it."""
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
        """Put a run on record, in the order of the plan, and save that."""
        self.runs = sorted([*self.runs, run], key=self._place)
        self.on_event(RunEnded(run=run, answer=self.save(complete=False)))

    def _place(self, run: Run) -> int:
        return next((place for place, planned in enumerate(self.planned) if self.is_of(run, planned)), -1)

    def save(self, *, complete: bool) -> A:
        """Save the answer, and return it; raises SpaceError."""
        answer = self.answer(complete=complete)
        save_answer(self.folder, self.file, answer)
        return answer
