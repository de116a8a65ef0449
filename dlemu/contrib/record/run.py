"""Records a job: runs it with the hook, reads its rows, replays it, and writes the recipe (a workload file)."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from dlemu.contrib.record.answer import RECORD, Data, RecordAnswer, Recording, Replay
from dlemu.contrib.record.data_seen import data_notes, data_problems, dataset_of
from dlemu.contrib.record.hook import ROWS, with_hook
from dlemu.contrib.record.recipe import reads_parts, recipe_text, simplified
from dlemu.contrib.record.recording import analyse, files_of
from dlemu.contrib.record.rows import has_rows, read_rows
from dlemu.contrib.record.self_check import check_by_replay, run_replay, verdict
from dlemu.extend import DlemuError, UserError, child_run, environment, owned, write_text
from dlemu.extend import cache as page_cache
from dlemu.extend import run_folder as result_folder
from dlemu.results.answer_files import save_answer

RECIPE = "job.yaml"


@dataclass(frozen=True, kw_only=True)
class RecordQuestion:
    """Options of `dlemu record`: what to record, and for how long."""

    command: tuple[str, ...] = ()
    """The job's command line; empty if the job has already run, and left `rows`."""
    rows: str = ""
    """Folder with the rows of a job that has already run."""
    steps: int = 0
    """Batches to record of each trainer, after the skipped ones; 0: only `minutes` limits the recording."""
    minutes: float = 10.0
    skip: int = 10
    """Batches at the start of each trainer's first pass that are left out as warm-up."""
    out: str = ""
    """File for the recipe; empty: job.yaml in the output folder."""
    replay: bool = True


@dataclass(frozen=True)
class Recorded:
    """The recorded job, where the results were written, and how the job ended."""

    answer: RecordAnswer
    folder: str
    recipe: str
    job_status: int | None
    """Exit status of the job, -N if signal N ended it; None if it had run before."""
    verify: str = ""
    """Command that verifies the recipe later, on a quiet host."""


def record(
    question: RecordQuestion, *, folder: str = "", on_step: Callable[[str], None] = lambda what: None
) -> Recorded:
    """Record a job and write its recipe. Raises UserError for wrong options or rows without training, DlemuError."""
    folder = folder or result_folder.new_folder("record")
    recipe = question.out or os.path.join(folder, RECIPE)
    _check_options(question, folder, recipe)
    taken = owned.take_folder(folder, "--output")
    try:
        recording, data, status = _recorded(question, folder, on_step)
    except BaseException:  # with Ctrl-C
        if not has_rows(os.path.join(folder, ROWS)):
            taken.drop()
        raise
    if data is None or environment.describe_folder(data.folder).file_system not in page_cache.COUNTED:
        recording = replace(recording, device_bytes_counted=False)
    problems = (*recording.problems, *data_problems(data, recording))
    notes = (*recording.notes, *data_notes(data, recording), *simplified(recording, data))
    recording = replace(recording, problems=problems, notes=notes)
    engine, failure = "matched", ""
    _save(folder, recipe, RecordAnswer(complete=False, recording=recording, data=data), engine, failure)
    replays: list[Replay] = []
    if question.replay and data is not None and not recording.problems:
        on_step("replaying it on the same storage")
        try:
            run = partial(run_replay, folder, data=data, skip=question.skip, on_step=on_step)
            parts = reads_parts(data, recording)
            recording, engine, replays = check_by_replay(recording, run, one_engine=parts)
        except DlemuError as error:
            failure = "its replay failed"
            on_step(f"{failure}: {error}")
    answer = RecordAnswer(complete=True, recording=recording, data=data, replays=tuple(replays))
    answer = _save(folder, recipe, answer, engine, failure)
    return Recorded(answer, folder, recipe, status, _verification(question, folder))


def _recorded(
    question: RecordQuestion, folder: str, on_step: Callable[[str], None]
) -> tuple[Recording, Data | None, int | None]:
    rows, status = question.rows, None
    if question.command:
        rows = os.path.join(folder, ROWS)
        owned.claim(folder, ROWS + "/")
        hook = with_hook(folder, rows, steps=question.steps, minutes=question.minutes, skip=question.skip)
        status = child_run.run_attached(question.command, hook)
    on_step("reading what was recorded")
    processes = read_rows(rows)
    if not processes and status == -signal.SIGINT:
        raise KeyboardInterrupt  # Ctrl-C before the job took its first batch
    if not processes and status:
        raise DlemuError(
            f"the job ended {how_ended(status)} before it took a batch from a PyTorch DataLoader: see its output "
            "above, and run it without `dlemu record --`"
        )
    return *dataset_of(files_of(processes, question.skip), analyse(processes, question.skip)), status


def how_ended(status: int) -> str:
    return f"with status {status}" if status >= 0 else f"by signal {-status}"


def _check_options(question: RecordQuestion, folder: str, recipe: str) -> None:
    if bool(question.command) == bool(question.rows):
        raise UserError(
            "wanted a job to record, as in `dlemu record -- python train.py`, or --rows FOLDER of a job that ran"
        )
    if question.rows and not os.path.isdir(question.rows):
        raise UserError(f"--rows is {question.rows}, which is not a folder: wanted a folder with a recorded job's rows")
    result_folder.check_place(folder, setting="--output")
    if os.path.lexists(os.path.join(folder, RECORD)):
        raise UserError(f"{folder} holds a recorded job; name a new folder with --output")
    if os.path.lexists(recipe):
        raise UserError(f"{recipe} already exists: name another file with --out, or remove it")
    if not recipe.endswith(".yaml"):
        raise UserError(f"--out is {recipe}: wanted a name that ends in .yaml, as workload files have")
    parent = os.path.dirname(os.path.abspath(recipe))
    if question.out and not os.path.isdir(parent):
        raise UserError(f"--out is {recipe}, and {parent} is not a folder: make it first")


def _verification(question: RecordQuestion, folder: str) -> str:
    """Return the command that replays the rows again."""
    rows = question.rows or os.path.join(folder, ROWS)
    return shlex.join(["dlemu", "record", "--skip", str(question.skip), "--rows", rows])


def _save(folder: str, recipe: str, answer: RecordAnswer, engine: str, failure: str) -> RecordAnswer:
    """Write the recipe and record.json; return the answer with its verdict; `failure`: that of a replay."""
    replay = answer.replays[-1] if answer.replays else None
    replayable, reason = verdict(answer.recording, replay, failure)
    answer = replace(answer, replayable=replayable, reason=reason, recipe=os.path.basename(recipe))
    text = recipe_text(
        answer.recording, answer.data, engine=engine, replayable=replayable, reason=reason, replay=replay
    )
    write_text(os.path.dirname(recipe) or ".", os.path.basename(recipe), text)
    save_answer(folder, RECORD, answer)
    return answer
