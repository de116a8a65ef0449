"""`dlemu together`: runs jobs one by one, then all at once; together.json and its page show each, both ways."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from datagen.errors import UserError
from datagen.owned import fresh_folder
from datagen.withheld import without_secrets
from dlemu.config import digest, load
from dlemu.config.overrides import take_word
from dlemu.metrics.catalogue import Metric
from dlemu.metrics.demand import sample_divisor
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Section, Table, columns
from dlemu.results.answer_files import ANSWER_VERSION, read_answer
from dlemu.results.figures import SAME_PERCENT, Difference, JobFigures, difference, difference_in_words
from dlemu.results.kinds import Parts, catalogue_of, kind_wanted, kinds, read_figures
from dlemu.results.wording import count, scaled
from dlemu.runner.child_run import job, run_commands
from dlemu.runner.events import ignore
from dlemu.runner.job import check_ahead, checked
from dlemu.runner.run_folder import new_folder
from dlemu.runner.run_list import Planned, RunList
from dlemu.studies.compare.page import difference_rows
from dlemu.studies.prerequisites import Child, check_launcher

TOGETHER = "together.json"
WANTED_OVERLAP_PERCENT = 80.0
"""Share of a job's time in which others should run: with less, it had the storage to itself for too long."""


Span = tuple[float, float]
"""Begin and end, s."""


@dataclass(frozen=True, kw_only=True)
class MeasuredJob:
    """What was measured of a job, alone or together with the others."""

    folder: str
    """The run's folder, in that of together.json."""
    figures: JobFigures
    overlap_percent: float = 100.0
    """Share of its time in which at least one other job ran; 100 for a run alone."""


Turn = dict[int, MeasuredJob]
"""Jobs that ran at the same time, one alone, or all: index of the job in the question -> what was measured of it."""


@dataclass(frozen=True, kw_only=True)
class TogetherQuestion:
    """Which jobs to run."""

    jobs: tuple[tuple[str, ...], ...]
    """For each job its command, then its overrides."""
    settings_digest: str
    """Of all settings, those in the workload's file included."""


@dataclass(frozen=True, kw_only=True)
class JobTogether:
    """What the others cost one of the jobs."""

    command: str
    number: int
    """From 1, in the order in which the jobs were asked for."""
    alone: MeasuredJob
    beside: MeasuredJob
    """Its run together with the others."""

    @property
    def title(self) -> str:
        """Its command and workload."""
        return f"{self.command} {self.beside.figures.workload}{scaled(self.beside.figures.sample_divisor)}"

    @property
    def cost(self) -> dict[str, Difference]:
        """Metric -> difference of together (A) to alone (B), for the metrics that both runs have."""
        beside, alone = self.beside.figures.metrics, self.alone.figures.metrics
        return {name: difference(beside[name], alone[name]) for name in beside if name in alone}

    @property
    def loss(self) -> Loss | None:
        """What it lost most of its main metrics, the certain before others; None where not both runs have one."""
        cost, catalogue = self.cost, catalogue_of(self.beside.figures.kind)
        main = [metric for metric in catalogue.headlines if metric.name in cost]
        known = main or [metric for metric in catalogue.compared if metric.name in cost]
        losses = [Loss(metric, cost[metric.name]) for metric in known]
        return max(losses, key=lambda loss: (loss.is_certain, loss.percent), default=None)


class Loss(NamedTuple):
    """What the others cost a job in one metric."""

    metric: Metric
    cost: Difference

    @property
    def percent(self) -> float:
        """The share of its speed that the job lost, %; below 0: gained."""
        beside, alone = self.cost.a.mean, self.cost.b.mean
        fast, slow = (alone, beside) if self.metric.better == "higher" else (beside, alone)
        return 100 * (1 - slow / fast) if fast and self.metric.better != "neither" else 0.0

    @property
    def is_certain(self) -> bool:
        """Whether it lost more than the uncertainty, which is unknown without repetitions."""
        return self.percent >= SAME_PERCENT and self.cost.distinct is True

    def __str__(self) -> str:
        told = difference_in_words(self.cost, self.metric, a="together", b="alone")
        beside, alone = self.cost.a.mean, self.cost.b.mean
        return f"{self.metric.title} {alone:,.3g} {self.metric.unit} alone, {beside:,.3g} together: {told}"


@dataclass(frozen=True, kw_only=True)
class Together:
    """Concurrent jobs: together.json."""

    schema_version: int = ANSWER_VERSION
    complete: bool
    question: TogetherQuestion
    turns: tuple[Turn, ...]
    """Each job alone, then all of them: by their index in the question, what was measured."""
    verdict: str = ""
    """What the job lost that lost most, as a sentence; empty before all have run both ways."""

    @property
    def jobs(self) -> list[JobTogether]:
        """What the others cost each job; none before all have run both ways."""
        if len(self.turns) <= len(self.question.jobs):
            return []
        *alone, beside = self.turns
        return [
            JobTogether(command=words[0], number=at + 1, alone=alone[at][at], beside=beside[at])
            for at, words in enumerate(self.question.jobs)
        ]

    @property
    def issues(self) -> list[str]:
        """What a reader of these numbers must know, as sentences."""
        return [
            f"job {one.number} ({one.command}) ran with others for {one.beside.overlap_percent:.0f} % of its time: "
            "make the shorter ones longer (train.epochs, checkpoint.num_checkpoints_write) to see what they cost it"
            for one in self.jobs
            if one.beside.overlap_percent < WANTED_OVERLAP_PERCENT
        ]


def verdict_of(answer: Together) -> str:
    """Return which job lost most, of those that lost more than the uncertainty; empty without a cost of any."""
    losses = [(loss, one.number) for one in answer.jobs if (loss := one.loss)]
    certain = [(loss.percent, number, loss) for loss, number in losses if loss.is_certain]
    if certain:
        _, number, loss = max(certain)
        return f"lost most: job {number}, {loss}"
    unknown = any(loss.cost.distinct is None for loss, _ in losses)
    why = ": too few repetitions (epochs, checkpoints) for an interval" * unknown
    return f"no job lost anything that can be told{why}" if losses else ""


Jobs = dict[int, Child]
"""The jobs of a turn by their index."""


def run_together(
    asked: Sequence[Sequence[str]],
    *,
    folder: str = "",
    config_dir: str | None = None,
    on_event: Callable[[Any], object] = ignore,
) -> tuple[Together, str]:
    """Run jobs alone, then side by side; return the answer and its folder.

    `asked`: the overrides of each job, after its command (train, ...) if it is not the one that the workload
    needs. An interrupted study in `folder` is continued. Raises UserError before the first job for wrong settings of
    any, and UserError or DlemuError for one that fails.
    """
    check_launcher("together", "")
    if len(asked) < 2:
        raise UserError("only one job is named: wanted two or more")
    jobs = {number: _child(words, config_dir) for number, words in enumerate(asked)}
    question = TogetherQuestion(
        jobs=tuple((one.kind.command, *without_secrets(one.words)) for one in jobs.values()),
        settings_digest=digest([one.workload for one in jobs.values()]),
    )
    turns: list[Jobs] = [*({number: one} for number, one in jobs.items()), jobs]
    planned = [
        Planned(
            what=turn,
            name="",  # each job has a folder of its own
            label=" and ".join(map(_label, turn.values())) + " alone" * (len(turn) == 1),
            settings={},
        )
        for turn in turns
    ]
    runs = Study(folder or new_folder("together"), question, planned, on_event)
    runs.resume()
    return runs.run_missing(), runs.folder


class Study(RunList[Jobs, Turn, Together]):
    """Each job alone, then all of them side by side."""

    file, noun, runs_in, answer_type = TOGETHER, "study of concurrent jobs", "turns", Together
    setting = "--output"

    def answer(self, *, complete: bool) -> Together:
        """Return what has been measured so far."""
        answer = Together(complete=complete, question=self.question, turns=tuple(self.runs))
        return replace(answer, verdict=verdict_of(answer)) if complete else answer

    def is_of(self, run: Turn, planned: Planned[Jobs]) -> bool:
        """Return whether a turn that has run is the planned one."""
        return run.keys() == planned.what.keys()

    def make_folder(self, planned: Planned[Jobs]) -> str:
        """Make and return the folder of the study, in which each job has its own."""
        os.makedirs(self.folder, exist_ok=True)
        return self.folder

    def start(self, planned: Planned[Jobs], folder: str) -> Turn:
        """Run jobs at once, each with results of its own."""
        jobs = planned.what
        how = "alone" if len(jobs) == 1 else "beside"
        folders = [fresh_folder(folder, f"{how}-{number + 1}") for number in jobs]
        commands = [
            job([*one.words, "output.report=false"], own, command_name=one.kind.command)
            for one, own in zip(jobs.values(), folders, strict=True)
        ]
        run_commands(commands, lambda: None)
        read = [read_figures(own) for own in folders]
        spans, runs = [_span(run) for run, _ in read], {}
        for at, (number, own) in enumerate(zip(jobs, folders, strict=True)):
            others = spans[:at] + spans[at + 1 :]
            share = overlap_percent(spans[at], others) if others else 100.0
            runs[number] = MeasuredJob(folder=os.path.basename(own), figures=read[at][1], overlap_percent=share)
        return runs


def _child(words: Sequence[str], config_dir: str | None) -> Child:
    """Return a job, checked; raises UserError."""
    named = next((kind for kind in kinds() if kind.is_job and [kind.command] == list(words[:1])), None)
    words = words[1:] if named else words
    if take_word(words, "output.folder")[0]:
        raise UserError("output.folder is set for a job: name the folder of all of them with --output")
    workload = load(words, config_dir=config_dir)
    kind = named or kind_wanted(workload)
    job = kind.load_job().job
    whole = checked(workload, job)
    check_ahead(job, whole)
    return Child.of(kind, whole, words, config_dir=config_dir)


def _label(child: Child) -> str:
    """Return a job's description for the progress line."""
    ranks = count(child.workload.ranks, "rank")
    return f"{child.kind.command} {child.workload.model.name}, {ranks}{scaled(sample_divisor(child.workload))}"


def _span(run: Any) -> Span:
    times = run.facts.started_at, run.facts.journal.ended_at or run.facts.started_at
    began, ended = (datetime.fromisoformat(time).timestamp() for time in times)
    return began, ended


def overlap_percent(own: Span, others: Sequence[Span]) -> float:
    """Return the share of a time span, %, that is covered by any of the others; 0 for an empty span."""
    covered, at = 0.0, own[0]
    for begin, end in sorted(others):
        begin, end = max(begin, at), min(end, own[1])
        if end > begin:
            covered, at = covered + end - begin, end
    return 100 * covered / (own[1] - own[0]) if own[1] > own[0] else 0.0


def screen(answer: Together, folder: str) -> Screen:
    """Return what is said first of concurrent jobs: which lost most, and what each lost."""
    lines = [Said("answer", answer.verdict or "INCOMPLETE", tone="strong")]
    for one in answer.jobs:
        cost = f": {one.loss}".replace("+-", "±") if one.loss else ""
        lines.append(Said(f"job {one.number}", f"{one.title}{cost}"))
    title = f"{len(answer.question.jobs)} jobs on one storage: what does each cost the others?"
    return Screen(title=title, lines=lines, notes=answer.issues, folder=folder)


def sections(answer: Together, _: str) -> Iterator[Section]:
    """Yield a table of each job's metrics, together with the others and alone."""
    head = columns("metric", "together", "alone", "change", "+-", right=range(1, 5), whole=range(5))
    for one in answer.jobs:
        rows = difference_rows(one.cost, catalogue_of(one.beside.figures.kind))
        notes = [f"others ran during {one.beside.overlap_percent:.0f} % of its time"]
        yield Table(title=f"Job {one.number}: {one.title}", columns=head, rows=rows, notes=notes)


PARTS = Parts(
    read=lambda folder: read_answer(folder, TOGETHER, Together),
    answer_type=Together,
    screen=screen,
    sections=sections,
)
