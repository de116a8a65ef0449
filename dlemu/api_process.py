"""What the Python API has done in a process of its own: to start ranks on behalf of a Python program.

The ranks' parent becomes a subreaper, takes signals and forks: in a program with threads, an event loop or a GPU that
would do harm. The process dies with the program, and takes its ranks along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from datagen.errors import DatasetError, DlemuError
from dlemu.comm.failure import RANK, Role
from dlemu.config.schema import Workload
from dlemu.runner.clean_process import Emit, run_clean
from dlemu.runner.events import (
    CheckpointProgress,
    DatasetMade,
    DatasetProgress,
    Doing,
    Event,
    NotSaved,
    OnEvent,
    Saved,
    TrainingStep,
    ignore,
    to_all,
)

Result = TypeVar("Result")

_SAVING_SECONDS = 60.0
"""What an interrupted run may take to save what it measured."""
_PROCESS = Role("dlemu's process", RANK.remedy)
_PROGRESS = (TrainingStep, DatasetProgress, CheckpointProgress, Doing)
"""Events that a busy caller may miss: it must not hold up the accelerators."""


@dataclass(frozen=True)
class Request:
    """What to do."""

    command: str
    """Of a kind of job, or `datagen`."""
    workload: Workload
    ranks: int = 0
    """Instead of the workload's, if not 0."""
    fsync: bool = False
    make: bool = False
    """What is read and missing first."""
    size_is_given: bool = False
    """The dataset's number of files is the user's own."""


def run(request: Request, on_event: OnEvent | None) -> Any:
    """Run a job; return the run, typed as its kind has it. Raises what the run raised, as `run_clean`."""
    return _call(_run, request, on_event)


def make(request: Request, on_event: OnEvent | None) -> DatasetMade:
    """Make what is missing of a dataset; return what was made. Raises what that raised, as `run_clean`."""
    return _call(_make_all, request, on_event)


def _call(work: Callable[[Request, Emit], Result], request: Request, on_event: OnEvent | None) -> Result:
    return run_clean(work, request, _PROCESS, saving_seconds=_SAVING_SECONDS, on_message=on_event or ignore)


def _run(request: Request, emit: Emit) -> Any:
    from dlemu.dlio.export import export_beside
    from dlemu.report.run_log import log_writer
    from dlemu.results.kinds import kind_of_command
    from dlemu.runner.job import JobRequest, MakeFirst, NoVerdictError, run_alone

    workload = request.workload
    make_first = MakeFirst(request.size_is_given, lambda making, ranks: None) if request.make else None
    on_event = to_all(_emitting(emit), export_beside, log_writer(f"dlemu.{request.command}(...)"))
    kind = kind_of_command(request.command).part("job")
    try:
        result = run_alone(JobRequest(load=lambda: workload, make_first=make_first, keeps_run=True), on_event, kind)
    except NoVerdictError as error:
        files = f"dataset.num_files_train={error.files_wanted}"
        advice = f"Wanted {files}" + ("." if error.files_there else "; make=True makes the dataset first.")
        raise DatasetError(error.advised(advice)) from error
    except KeyboardInterrupt:
        raise DlemuError("interrupted before anything was measured") from None
    assert result is not None  # this process leads, and the workload asks for more than its data
    return result.run


def _make_all(request: Request, emit: Emit) -> DatasetMade:
    from dlemu.runner import datasets
    from dlemu.runner.job import JobRequest

    workload = replace(request.workload, ranks=request.ranks) if request.ranks else request.workload
    try:
        made = datasets.make(JobRequest(load=lambda: workload), _emitting(emit), fsync=request.fsync)
    except KeyboardInterrupt:
        raise DlemuError("interrupted before anything was measured") from None
    assert made is not None  # this process leads
    return made


def _emitting(emit: Emit) -> OnEvent:
    def tell(event: Event) -> None:
        if not isinstance(event, Saved | NotSaved):  # the result has it, or the error says what to do
            emit(event, droppable=isinstance(event, _PROGRESS))

    return tell
