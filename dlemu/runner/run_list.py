"""Runs a list of jobs one after another, and saves the answer after each, so that an interrupted list can be resumed.

A study, such as a sweep or a search, defines its runs, how to execute one, and the answer file. This module tracks
which runs have finished, failed or are missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from datagen import owned
from datagen.errors import DlemuError, UserError
from dlemu.results.answer_files import Answer, read_answer, save_answer
from dlemu.runner.run_folder import check_new, check_place

DIGEST = "settings_digest"  # field of a question: a digest of all settings, including those from files


@dataclass(frozen=True, kw_only=True)
class StudyAnswer(Answer):
    """What the answer file of every list of runs contains besides the runs."""

    complete: bool = field()  # required, unlike in `Answer`
    question: Any
    """A dataclass with the user's request; only a list with an equal question may be continued."""


What = TypeVar("What")  # type of a study's own description of a planned run
Run = TypeVar("Run")  # type of the record of an ended run; its attributes `settings` and `failure` are optional
A = TypeVar("A", bound=StudyAnswer)  # type of the answer file's content


@dataclass(frozen=True, kw_only=True)
class Planned(Generic[What]):
    """One planned run of a list; sent as an event when the run begins."""

    what: What
    """The study's own description of the run."""
    name: str
    """Name of the run's folder; a number is appended if it exists."""
    label: str
    """Description for the progress line."""
    settings: Mapping[str, str]
    """The settings that differ between the runs: key -> value."""


@dataclass(frozen=True, kw_only=True)
class RunsPlanned:
    """Event: all checks have passed, and no run has begun."""

    folder: str
    runs: int | None
    """Number of runs; None if each run depends on the results of earlier ones."""
    finished_runs: int
    """Number of runs that finished before the list was interrupted."""
    wants_page: bool = True
    """Whether to make a page of the answer: the workload's `output.report`."""


@dataclass(frozen=True, kw_only=True)
class RunEnded(Generic[Run, A]):
    """Event: a run has ended, perhaps by a failure, and its record is in the answer file."""

    run: Run
    answer: A
    """The answer so far."""


class RunList(ABC, Generic[What, Run, A]):
    """The runs of one study in one folder; `runs` are those recorded in its answer file."""

    file: ClassVar[str]
    """Name of the answer file."""
    noun: ClassVar[str]
    """The list's name in messages, such as `sweep`."""
    setting: ClassVar[str] = "output.folder"
    """The setting or option that sets the list's folder."""
    runs_in: ClassVar[str]
    """Name of the answer's field that contains the runs."""
    answer_type: type[A]

    def __init__(
        self,
        folder: str,
        question: Any,
        planned: Sequence[Planned[What]],
        on_event: Callable[[RunsPlanned | Planned[What] | RunEnded[Run, A]], object],
    ) -> None:
        self.folder = folder
        self.question = question
        self.planned = planned
        self.runs: list[Run] = []
        self.on_event = on_event

    @abstractmethod
    def answer(self, *, complete: bool) -> A:
        """Return the answer from the runs so far."""

    @abstractmethod
    def start(self, planned: Planned[What], folder: str) -> Run:
        """Execute a planned run in `folder` and return its record; a DlemuError ends the list.

        A record with a `failure` does not end it, but a resumed list repeats that run.
        """

    def is_of(self, run: Run, planned: Planned[What]) -> bool:
        """Return whether `run` is the record of `planned`; by default, whether their settings are equal."""
        return getattr(run, "settings", None) == planned.settings

    def make_folder(self, planned: Planned[What]) -> str:
        """Create the folder of a run that is about to begin, and return its path."""
        return owned.fresh_folder(self.folder, planned.name)

    def resume(self) -> None:
        """Load the finished runs, but start none. Raises UserError if the list is complete or its question differs."""
        check_place(self.folder, setting=self.setting)
        with self._locked(UserError):
            saved = read_answer(self.folder, self.file, self.answer_type)
        if saved is None:
            check_new(self.folder, self.setting)
            return
        runs: Sequence[Run] = getattr(saved, self.runs_in)
        self.runs = [run for run in runs if getattr(run, "failure", None) is None]
        if saved.complete and len(self.runs) == len(runs):
            raise UserError(
                f"{self.folder} holds a finished {self.noun}; set {self.setting} to a new folder, or view it with "
                f"`dlemu report {shlex.quote(self.folder)}`"
            )
        earlier = asdict(saved.question)
        current = asdict(self.question)
        if changed_keys := [key for key in current if earlier[key] != current[key]]:
            changes = [f"{key} was {earlier[key]!r}, is {current[key]!r}" for key in changed_keys if key != DIGEST]
            reason = "; ".join(changes) or "the workload's file, or dlemu's version changed"
            raise UserError(
                f"{self.folder} holds an interrupted {self.noun} with other settings ({reason}); "
                f"set {self.setting} to a new folder"
            )

    def run_missing(self, *, wants_page: bool = True) -> A:
        """Execute the planned runs that have no record yet, and return the answer."""
        missing = [planned for planned in self.planned if not any(self.is_of(run, planned) for run in self.runs)]
        finished = len(self.planned) - len(missing)
        event = RunsPlanned(folder=self.folder, runs=len(self.planned), finished_runs=finished, wants_page=wants_page)
        self.on_event(event)
        for planned in missing:
            self.run_one(planned)
        return self.save(complete=True)

    def run_one(self, planned: Planned[What]) -> None:
        """Execute one run, add its record in the plan's order, and save the answer."""
        self.on_event(planned)
        folder = self.make_folder(planned)
        with self._locked():
            run = self.start(planned, folder)
            self.runs = sorted([*self.runs, run], key=self._position)
            self.on_event(RunEnded(run=run, answer=self.save(complete=False)))

    def _position(self, run: Run) -> int:
        return next((position for position, planned in enumerate(self.planned) if self.is_of(run, planned)), -1)

    @contextlib.contextmanager
    def _locked(self, refusal: type[DlemuError] = DlemuError) -> Iterator[None]:
        """Context with the folder locked, if it exists; raises `refusal` if another process runs a list in it."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise refusal(
                        f"{self.folder} is in use by a {self.noun} that another process runs: wait until it ends, or "
                        f"set {self.setting} to a new folder"
                    ) from None
                except OSError:  # a file system that can't lock folders
                    pass
            yield

    def save(self, *, complete: bool) -> A:
        """Save the answer, and return it; raises SpaceError."""
        answer = self.answer(complete=complete)
        save_answer(self.folder, self.file, answer)
        return answer
