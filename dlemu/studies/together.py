"""`dlemu together`: runs each job alone, then all at once; together.json shows how much the others slow it down."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from datagen.errors import UserError
from datagen.owned import fresh_folder
from datagen.withheld import redact_argv
from dlemu.config import digest, load
from dlemu.config.overrides import given_keys, take_word
from dlemu.metrics.cache import CACHE_KEYS, eviction
from dlemu.metrics.catalogue import Metric
from dlemu.metrics.demand import sample_divisor
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Table, columns
from dlemu.results.figures import SAME_PERCENT, Difference, JobFigures, difference, difference_in_words
from dlemu.results.kinds import Parts, catalogue_of, kind_to_run, kinds, read_figures
from dlemu.results.parts import VerdictField
from dlemu.results.wording import at_scale, count
from dlemu.runner import child_run
from dlemu.runner.job import checked
from dlemu.runner.run_folder import new_folder
from dlemu.runner.run_list import Planned, RunList, StudyAnswer
from dlemu.studies.answers import RunsQuestion, StudyRun
from dlemu.studies.compare.page import difference_rows
from dlemu.studies.prerequisites import Child, check_launcher, config_options

TOGETHER = "together.json"
MIN_OVERLAP_PERCENT = 80.0  # of a job's time: with less, it had the storage to itself for too long
Span = tuple[float, float]  # begin and end of a run, seconds since 1970


@dataclass(frozen=True, kw_only=True)
class MeasuredJob(StudyRun):
    """What was measured of a job, alone or together with the others."""

    figures: JobFigures = field()  # never None, as a job that fails ends the study
    overlap_percent: float = 100.0
    """Share of its time in which at least one other job ran; 100 for a run alone."""


ConcurrentRuns = dict[int, MeasuredJob]  # the jobs of one turn: index in the question -> run


class Loss(NamedTuple):
    """How much slower a job runs together with the others than alone, by one metric."""

    metric: Metric
    change: Difference  # of the run together with the others (A) from the run alone (B)

    @property
    def percent(self) -> float:
        """Share of the speed lost, %: 20 for a rate that falls from 100 to 80, or a time that rises from 80 to 100."""
        together, alone = self.change.a.mean, self.change.b.mean
        smaller, larger = (together, alone) if self.metric.better == "higher" else (alone, together)
        return 100 * (1 - smaller / larger) if larger and self.metric.better != "neither" else 0.0

    @property
    def is_certain(self) -> bool:
        """Whether the loss is larger than its uncertainty; False if that is unknown, as there are no repetitions."""
        return self.percent >= SAME_PERCENT and self.change.distinct is True

    def __str__(self) -> str:
        together, alone = self.change.a.mean, self.change.b.mean
        change = difference_in_words(self.change, self.metric, a="together", b="alone")
        return f"{self.metric.title} {alone:,.3g} {self.metric.unit} alone, {together:,.3g} together: {change}"


class JobTogether(NamedTuple):
    """The two runs of a job: alone, and together with the others."""

    number: int  # position in the question, from 1
    command: str
    alone: MeasuredJob
    together: MeasuredJob

    @property
    def title(self) -> str:
        return f"{self.command} {self.together.figures.workload}{at_scale(self.together.figures.sample_divisor)}"

    @property
    def changes(self) -> dict[str, Difference]:
        """Metric -> difference of the run with others (A) from the run alone (B), for the metrics that both have."""
        together, alone = self.together.figures.metrics, self.alone.figures.metrics
        return {name: difference(together[name], alone[name]) for name in together if name in alone}

    @property
    def loss(self) -> Loss | None:
        """The largest loss in a headline metric, or else in any; certain losses come first. None without a metric."""
        changes, catalogue = self.changes, catalogue_of(self.together.figures.kind)
        metrics = [metric for metric in catalogue.headlines if metric.name in changes]
        metrics = metrics or [metric for metric in catalogue.compared if metric.name in changes]
        losses = [Loss(metric, changes[metric.name]) for metric in metrics]
        return max(losses, key=lambda loss: (loss.is_certain, loss.percent), default=None)


@dataclass(frozen=True, kw_only=True)
class Together(VerdictField, StudyAnswer):
    """Concurrent jobs: together.json. Its verdict names the job that lost most."""

    question: RunsQuestion
    """In `overrides`, a text for each job."""
    turns: tuple[ConcurrentRuns, ...]
    """Each job alone, then all of them: by their index in the question, what was measured."""

    @property
    def jobs(self) -> list[JobTogether]:
        """Both runs of each job; empty until the last turn, in which all jobs run together, has ended."""
        if len(self.turns) <= len(self.question.overrides):
            return []
        *alone, together = self.turns
        return [
            JobTogether(index + 1, text.split()[0], alone[index][index], together[index])
            for index, text in enumerate(self.question.overrides)
        ]


def verdict_of(answer: Together) -> str:
    """Return a phrase with the job that has the largest certain loss; empty if no job has two comparable runs."""
    losses = {job.number: job.loss for job in answer.jobs if job.loss is not None}
    if certain := [number for number, loss in losses.items() if loss.is_certain]:
        slowed_most = max(certain, key=lambda number: (losses[number].percent, number))
        return f"lost most: job {slowed_most}, {losses[slowed_most]}"
    if not losses:
        return ""
    verdict = "no job lost measurably"
    if any(loss.change.distinct is None for loss in losses.values()):
        verdict += ": too few repetitions (epochs, checkpoints) for an interval"
    return verdict


def run_together(
    commands: Sequence[Sequence[str]], *, folder: str, config_dir: str | None, on_event: Callable[[Any], object]
) -> tuple[Together, str]:
    """Run each job alone, then all at the same time; return the answer and its folder, a new one if `folder` is empty.

    `commands`: the overrides of each job; a command (train, ...) may precede them, by default the one that the workload
    needs. Continues an interrupted study in `folder`. Raises UserError before the first job if the settings of
    any job are wrong, and UserError or DlemuError if a job fails.
    """
    check_launcher("together", "")
    if len(commands) < 2:
        raise UserError("only one job is named: wanted two or more")
    jobs = {index: _checked_job(argv, config_dir) for index, argv in enumerate(commands)}
    question = RunsQuestion(
        overrides=tuple(shlex.join((job.kind.command, *redact_argv(job.argv))) for job in jobs.values()),
        settings_digest=digest([job.workload for job in jobs.values()]),
    )
    labels = {}
    for index, job in jobs.items():
        ranks = count(job.workload.ranks, "rank") + at_scale(sample_divisor(job.workload))
        labels[index] = f"{job.kind.command} {job.workload.model.name}, {ranks}"
    planned = []
    for turn in [*({index: job} for index, job in jobs.items()), jobs]:  # each job alone, then all jobs
        label = " and ".join(labels[index] for index in turn) + (" alone" if len(turn) == 1 else "")
        planned.append(Planned(what=turn, name="", label=label, settings={}))  # unnamed: each job has its own folder
    runs = Turns(folder or new_folder("together"), question, planned, on_event)
    runs.resume()
    return runs.run_missing(), runs.folder


class Turns(RunList[dict[int, Child], ConcurrentRuns, Together]):
    """The turns of a study: each job alone, then all jobs at the same time."""

    file, noun, runs_in, answer_type = TOGETHER, "study of concurrent jobs", "turns", Together
    setting = "--output"

    def answer(self, *, complete: bool) -> Together:
        answer = Together(complete=complete, question=self.question, turns=tuple(self.runs))
        issues = tuple(
            f"job {job.number} ({job.command}) ran with others for {job.together.overlap_percent:.0f} % of its time: "
            "make the shorter ones longer (train.epochs, checkpoint.num_checkpoints_write) to see what they cost it"
            for job in answer.jobs
            if job.together.overlap_percent < MIN_OVERLAP_PERCENT
        )
        return replace(answer, issues=issues, verdict=verdict_of(answer)) if complete else answer

    def is_of(self, run: ConcurrentRuns, planned: Planned[dict[int, Child]]) -> bool:
        return run.keys() == planned.what.keys()

    def make_folder(self, planned: Planned[dict[int, Child]]) -> str:
        os.makedirs(self.folder, exist_ok=True)
        return self.folder  # each job of a turn gets a folder of its own in it

    def start(self, planned: Planned[dict[int, Child]], folder: str) -> ConcurrentRuns:
        jobs = planned.what
        prefix = "alone" if len(jobs) == 1 else "beside"
        folders = {index: fresh_folder(folder, f"{prefix}-{index + 1}") for index in jobs}
        with ExitStack() as stack:
            commands = []
            for index, child in jobs.items():
                own = stack.enter_context(child.kind.load_job().job.own_place(child.workload, folders[index]))
                argv = [*child.argv, *own, "output.report=false"]
                commands.append(child_run.job(argv, folders[index], command=child.kind.command))
            child_run.run_commands(commands)
        spans, turn = dict[int, Span](), dict[int, MeasuredJob]()
        for index, job_folder in folders.items():
            run, figures = read_figures(job_folder)
            began = run.facts.started_at
            ended = run.facts.journal.ended_at or began
            spans[index] = datetime.fromisoformat(began).timestamp(), datetime.fromisoformat(ended).timestamp()
            turn[index] = MeasuredJob(folder=os.path.basename(job_folder), figures=figures)
        for index, span in spans.items():
            if others := [spans[other] for other in spans if other != index]:
                turn[index] = replace(turn[index], overlap_percent=overlap_percent(span, others))
        return turn


def _checked_job(argv: Sequence[str], config_dir: str | None) -> Child:
    """Return the job of `argv`, overrides after an optional command; raises UserError if it could not run."""
    kind = next((kind for kind in kinds() if kind.is_job and argv and kind.command == argv[0]), None)
    overrides = argv if kind is None else argv[1:]
    if take_word(overrides, "output.folder")[0]:
        raise UserError("output.folder is set for a job: name the folder of all of them with --output")
    workload = load(overrides, config_dir=config_dir)
    kind = kind or kind_to_run(workload)
    job = kind.load_job().job
    workload = checked(workload, job)
    if not workload.workflow.generate_data:  # a job that makes its own dataset can't be planned before
        job.in_time(workload, lambda: job.plan(workload, workload.ranks, wants_verdict=False))
    if kind.command == "train" and not given_keys(overrides) & CACHE_KEYS:
        overrides = (*overrides, eviction(workload.dataset.format))
    return Child(kind, workload, (*config_options(config_dir), *overrides))


def overlap_percent(own: Span, others: Sequence[Span]) -> float:
    """Return the share of a span of time, %, in which at least one of the others overlaps it; 0 for an empty span."""
    own_begin, own_end = own
    covered_seconds, covered_until = 0.0, own_begin
    for other_begin, other_end in sorted(others):
        begin, end = max(other_begin, covered_until), min(other_end, own_end)
        if end > begin:
            covered_seconds += end - begin
            covered_until = end
    return 100 * covered_seconds / (own_end - own_begin) if own_end > own_begin else 0.0


def screen(answer: Together, folder: str) -> Screen:
    """Return the first screen: which job lost most, and how much each lost."""
    lines = [Said("answer", answer.verdict or "INCOMPLETE", tone="strong")]
    for job in answer.jobs:
        loss = f": {job.loss}".replace("+-", "±") if job.loss else ""
        lines.append(Said(f"job {job.number}", f"{job.title}{loss}"))
    title = f"{len(answer.question.overrides)} jobs on one storage: what does each cost the others?"
    return Screen(title=title, lines=lines, notes=answer.issues, folder=folder)


def sections(answer: Together, _: str) -> Iterator[Table]:
    """Yield a table for each job: its metrics together with the others and alone."""
    head = columns("metric", "together", "alone", "change", "±", right=range(1, 5), whole=range(5))
    for job in answer.jobs:
        rows = difference_rows(job.changes, catalogue_of(job.together.figures.kind))
        notes = [f"others ran during {job.together.overlap_percent:.0f} % of its time"]
        yield Table(title=f"Job {job.number}: {job.title}", columns=head, rows=rows, notes=notes)


PARTS = Parts(answer_type=Together, screen=screen, sections=sections)
