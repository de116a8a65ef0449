"""Jobs alone, one after another, then all at once: together.json says what each got, and what the others cost it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from datagen.errors import UserError
from datagen.owned import fresh_folder
from dlemu.comm import detect_launcher
from dlemu.config import load
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.results.answer_files import ANSWER_VERSION, read_answer, save_answer
from dlemu.results.compared import Difference, difference
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import Kind, kind_of_command, kind_wanted
from dlemu.runner.child_run import Command, job, run_commands
from dlemu.runner.job import check_ahead, checked
from dlemu.runner.run_folder import check_place, new_folder
from dlemu.runner.run_list import RunBegan, RunsPlanned

TOGETHER = "together.json"
WANTED_OVERLAP_PERCENT = 80.0
"""Of a job's time in which others went on: below it, its figures are partly those of a storage of its own."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a job got: alone, or beside the others."""

    folder: str
    """Below that of the study."""
    figures: JobFigures
    began_at: str
    """ISO 8601 with zone; so `ended_at`."""
    ended_at: str | None


@dataclass(frozen=True, kw_only=True)
class JobTogether:
    """One of the jobs."""

    command: str
    words: tuple[str, ...]
    alone: Told | None = None
    """None where it was not to run alone, and until it has."""
    beside: Told | None = None
    """With the others; None until it has run."""
    overlap_percent: float | None = None
    """Share of its time beside the others in which another one went on."""

    @property
    def cost(self) -> dict[str, Difference]:
        """Each metric beside the others (A) and alone (B), of those that both runs have."""
        if self.alone is None or self.beside is None:
            return {}
        beside, alone = self.beside.figures.metrics, self.alone.figures.metrics
        return {name: difference(beside[name], alone[name]) for name in beside if name in alone}


@dataclass(frozen=True, kw_only=True)
class Together:
    """The answer: together.json."""

    schema_version: int = ANSWER_VERSION
    complete: bool
    jobs: tuple[JobTogether, ...]
    issues: tuple[str, ...] = ()
    """What a reader of its numbers must know, as sentences."""


@dataclass(frozen=True)
class _Planned:
    words: tuple[str, ...]
    workload: Workload
    kind: Kind


OnEvent = Callable[[RunsPlanned | RunBegan], object]


def run_together(
    asked: Sequence[Sequence[str]],
    *,
    commands: Sequence[str] = (),
    alone: bool = True,
    folder: str = "",
    config_dir: str | None = None,
    on_event: OnEvent = lambda event: None,
) -> tuple[Together, str]:
    """Run jobs alone, then beside each other; return the answer and its folder.

    Args:
        asked: the overrides of each job.
        commands: the command of each (train, checkpoint, ...); without them, what each workload asks for.
        alone: run each alone first, to say what the others cost it.
        folder: where the answer goes. One that was interrupted goes on with what is missing.
        config_dir: a folder with workload/NAME.yaml.
        on_event: is called with what goes on.

    Raises UserError before the first job for what is wrong with any, and UserError or DlemuError for one that fails.
    """
    if detect_launcher() != "none":
        raise UserError("dlemu together was started by mpirun, srun or torchrun: start it once, without")
    if len(asked) < 2:
        raise UserError("one job has nobody beside it: wanted two or more")
    planned = [
        _plan(words, command, config_dir) for words, command in zip(asked, commands or [""] * len(asked), strict=True)
    ]
    folder = folder or new_folder("together")
    check_place(folder, setting="--output", ours=(TOGETHER,))
    jobs = _kept(folder, [_fresh(one) for one in planned])
    done = sum(one.alone is not None for one in jobs)
    on_event(RunsPlanned(folder=folder, runs=len(jobs) * alone + 1, finished_runs=done))
    options = ["--config-dir", config_dir] if config_dir else []
    for number, one in enumerate(planned):
        if alone and jobs[number].alone is None:
            on_event(RunBegan(label=f"{_name(one)} alone", settings={}))
            (told,) = _run([one], [f"alone-{number + 1}"], folder, options)
            jobs[number] = replace(jobs[number], alone=told)
            save_answer(folder, TOGETHER, Together(complete=False, jobs=tuple(jobs)))
    on_event(RunBegan(label=" beside ".join(map(_name, planned)), settings={}))
    names = [f"beside-{number}" for number in range(1, len(planned) + 1)]
    beside = _run(planned, names, folder, options)
    spans = [_span(told) for told in beside]
    for number, told in enumerate(beside):
        others = [span for other, span in enumerate(spans) if other != number]
        jobs[number] = replace(jobs[number], beside=told, overlap_percent=overlap_percent(spans[number], others))
    answer = Together(complete=True, jobs=tuple(jobs), issues=tuple(_issues(jobs)))
    save_answer(folder, TOGETHER, answer)
    return answer, folder


def read_together(folder: str) -> Together | None:
    """Return the answer that a folder holds, None where it holds none; raises UserError for a damaged one."""
    return read_answer(folder, TOGETHER, Together)


def _plan(words: Sequence[str], command: str, config_dir: str | None) -> _Planned:
    if any(word.lstrip("+").startswith("output.folder=") for word in words):
        raise UserError("output.folder is set for a job: name the folder of all of them by --output")
    workload = load(words, config_dir=config_dir)
    kind = kind_of_command(command) if command else kind_wanted(workload)
    if not kind.job:
        raise UserError(f"`dlemu {kind.command}` is no job of ranks: wanted train, checkpoint, or another such job")
    job = kind.part("job")
    whole = checked(workload, job)
    check_ahead(job, whole)
    return _Planned(tuple(words), whole, kind)


def _fresh(one: _Planned) -> JobTogether:
    return JobTogether(command=one.kind.command, words=tuple(without_secrets(one.words)))


def _name(one: _Planned) -> str:
    return f"{one.kind.command} {one.workload.model.name}, {one.workload.ranks} rank{'s' * (one.workload.ranks != 1)}"


def _kept(folder: str, fresh: list[JobTogether]) -> list[JobTogether]:
    """Return what an interrupted study of the same jobs has, else the jobs as they begin; raises UserError."""
    saved = read_together(folder)
    if saved is None:
        return fresh
    if saved.complete:
        raise UserError(f"{folder} holds jobs that have run; name a new folder with --output")
    if [(one.command, one.words) for one in saved.jobs] != [(one.command, one.words) for one in fresh]:
        raise UserError(f"{folder} holds other jobs that were interrupted; name a new folder with --output")
    return list(saved.jobs)


def _run(planned: Sequence[_Planned], names: Sequence[str], parent: str, options: Sequence[str]) -> list[Told]:
    """Run jobs at once, each with results of its own."""
    folders = [fresh_folder(parent, name) for name in names]
    commands: list[Command] = [
        job([*options, *one.words, "output.report=false"], folder, command_name=one.kind.command)
        for one, folder in zip(planned, folders, strict=True)
    ]
    run_commands(commands, lambda: None)
    return [_told(one, folder) for one, folder in zip(planned, folders, strict=True)]


def _told(one: _Planned, folder: str) -> Told:
    run = one.kind.part("read")(folder)
    return Told(
        folder=os.path.basename(folder),
        figures=one.kind.part("figures")(run),
        began_at=run.summary.started_at,
        ended_at=run.summary.ended_at,
    )


Span = tuple[float, float]
"""Begin and end, s."""


def _span(told: Told) -> Span:
    begin = datetime.fromisoformat(told.began_at).timestamp()
    return begin, datetime.fromisoformat(told.ended_at).timestamp() if told.ended_at else begin


def overlap_percent(own: Span, others: Sequence[Span]) -> float:
    """Return the share of a span, %, in which any of the others goes on; 0 of one that took no time."""
    covered, at = 0.0, own[0]
    for begin, end in sorted(others):
        begin, end = max(begin, at), min(end, own[1])
        if end > begin:
            covered, at = covered + end - begin, end
    return 100 * covered / (own[1] - own[0]) if own[1] > own[0] else 0.0


def _issues(jobs: Sequence[JobTogether]) -> Iterator[str]:
    for number, one in enumerate(jobs, start=1):
        if one.overlap_percent is not None and one.overlap_percent < WANTED_OVERLAP_PERCENT:
            yield (
                f"job {number} ({one.command}) had others beside it in {one.overlap_percent:.0f} % of its time: make "
                "the shorter ones longer (train.epochs, checkpoint.num_checkpoints_write) to see what they cost it"
            )
