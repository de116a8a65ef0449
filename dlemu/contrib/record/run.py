"""Records a job: runs it with the hook, reads the rows, replays the job, and writes the recipe (a workload file)."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from dlemu.contrib.record.answer import RECORD, Data, JobData, JobRun, RecordAnswer, Recording
from dlemu.contrib.record.dataset import data_notes, data_problems, recording_and_data
from dlemu.contrib.record.recipe import reads_parts, recipe_text, simplified
from dlemu.contrib.record.recording import analyse, files_of
from dlemu.contrib.record.replay import check_by_replay, run_replay, verdict
from dlemu.contrib.record.rows import ROWS, read_rows, row_files, with_hook
from dlemu.extend import DlemuError, UserError, child_run, environment, owned, write_text
from dlemu.extend import cache as page_cache
from dlemu.extend import run_folder as result_folder
from dlemu.results.answer_files import save_answer

RECIPE = "job.yaml"


@dataclass(frozen=True)
class Recorded:
    """What `record` measured, where it wrote the results, and how the job ended."""

    answer: RecordAnswer
    folder: str
    recipe: str
    job_status: int | None  # exit status of the job, -N if signal N ended it; None for rows of an earlier job
    verify: str  # command to verify the recipe later, on a quiet host


def record(
    command: Sequence[str] = (),
    *,
    rows: str = "",
    steps: int = 0,
    minutes: float = 10.0,
    skip: int = 10,
    out: str = "",
    replay: bool = True,
    folder: str = "",
    on_step: Callable[[str], None] = lambda what: None,
) -> Recorded:
    """Record the job that `command` starts, or use the `rows` of an earlier job; replay it and write its recipe.

    The parameters are the options of `dlemu record`. Raises UserError for wrong options and for rows without training.
    """
    if bool(command) == bool(rows):
        raise UserError("wanted a job to record: `dlemu record -- python train.py`, or --rows FOLDER of one that ran")
    if rows and not os.path.isdir(rows):
        raise UserError(f"--rows is {rows}, which is not a folder: wanted a folder with a recorded job's rows")
    folder = folder or result_folder.new_folder("record")
    recipe = out or os.path.join(folder, RECIPE)
    hook_rows = os.path.join(folder, ROWS)
    status = None
    _check_paths(folder, recipe, has_rows=bool(command and row_files(hook_rows)))
    output_folder = owned.take_folder(folder, "--output")
    try:
        if command:
            owned.claim(folder, ROWS + "/")
            hook_env = with_hook(folder, hook_rows, steps=steps, minutes=minutes, skip=skip)
            status = child_run.run_attached(command, hook_env)
        on_step("reading what was recorded")
        processes = read_rows(rows or hook_rows)
        if not processes and status == -signal.SIGINT:
            raise KeyboardInterrupt  # Ctrl-C before the job took its first batch
        if not processes and status:
            raise DlemuError(
                f"the job ended {how_ended(status)} before it took a batch from a PyTorch DataLoader: see its output "
                "above, and run it without `dlemu record --`"
            )
        recording, data = recording_and_data(files_of(processes, skip), analyse(processes, skip))
    except BaseException:  # also for Ctrl-C, the folder is kept only if it has rows
        if not row_files(hook_rows):
            output_folder.drop()
        raise
    recording = _with_notes(recording, data)
    job = msgspec.convert(recording, JobRun, from_attributes=True)
    job_data = data and msgspec.convert(data, JobData, from_attributes=True)
    answer = RecordAnswer(complete=False, issues=recording.notes, recording=job, data=job_data)
    engine, failure = "matched", ""
    # Saved first without a verdict, so that a user who interrupts the replay keeps the recording.
    _save(folder, recipe, answer, recording, data, engine, failure)
    if replay and data is not None and not recording.problems:
        on_step("replaying it on the same storage")
        try:
            replayer = partial(run_replay, folder, data=data, skip=skip, on_step=on_step)
            recording, engine, replays = check_by_replay(recording, replayer, one_engine=reads_parts(data, recording))
            answer = replace(answer, replays=tuple(replays))
        except DlemuError as error:
            failure = "its replay failed"
            on_step(f"{failure}: {error}")
    answer = _save(folder, recipe, replace(answer, complete=True), recording, data, engine, failure)
    verify = shlex.join(["dlemu", "record", "--skip", str(skip), "--rows", rows or hook_rows])
    return Recorded(answer, folder, recipe, status, verify)


def _with_notes(recording: Recording, data: Data | None) -> Recording:
    """Return the recording with the problems and notes that follow from the dataset and its file system."""
    is_counted = data is not None and environment.describe_folder(data.folder).file_system in page_cache.COUNTED
    recording = replace(recording, device_bytes_counted=is_counted)
    problems = (*recording.problems, *data_problems(data, recording))
    notes = (*recording.notes, *data_notes(data, recording), *simplified(recording, data))
    return replace(recording, problems=problems, notes=notes)


def how_ended(status: int) -> str:
    return f"with status {status}" if status >= 0 else f"by signal {-status}"


def _check_paths(folder: str, recipe: str, *, has_rows: bool) -> None:
    """Raise UserError if the folder or the recipe can't be created, or if the folder has rows of another job."""
    result_folder.check_new(folder, "--output")
    if has_rows:
        raise UserError(f"{folder} holds rows of a recorded job; set --output to a new folder")
    if os.path.lexists(recipe):
        raise UserError(f"{recipe} already exists: name another file with --out, or remove it")
    parent = os.path.dirname(os.path.abspath(recipe))
    if not recipe.endswith(".yaml") or not (os.path.isdir(parent) or parent == os.path.abspath(folder)):
        raise UserError(f"--out is {recipe}: wanted a name that ends in .yaml, in a folder that is there")


def _save(
    folder: str, recipe: str, answer: RecordAnswer, recording: Recording, data: Data | None, engine: str, failure: str
) -> RecordAnswer:
    """Write the recipe and record.json; return the answer with its verdict (see `replay.verdict`)."""
    replayable, reason = verdict(recording, answer.replays[-1] if answer.replays else None, failure)
    answer = replace(answer, replayable=replayable, reason=reason)
    write_text(os.path.dirname(recipe) or ".", os.path.basename(recipe), recipe_text(answer, recording, data, engine))
    save_answer(folder, RECORD, answer)
    return answer
