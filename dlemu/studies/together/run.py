"""`dlemu together`: runs jobs one by one, then all at once; together.json has the figures of each, both ways."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from datagen.errors import UserError
from datagen.owned import fresh_folder
from dlemu.config import digest, load
from dlemu.config.overrides import take_word
from dlemu.config.published import without_secrets
from dlemu.metrics.catalogue import Metric
from dlemu.metrics.demand import sample_divisor
from dlemu.results.answer_files import ANSWER_VERSION
from dlemu.results.figures import SAME_PERCENT, Difference, JobFigures, difference, in_words
from dlemu.results.kinds import catalogue_of, kind_of_command, kind_wanted, read_figures
from dlemu.results.wording import count, scaled
from dlemu.runner.child_run import job, run_commands
from dlemu.runner.job import check_ahead, checked
from dlemu.runner.run_folder import new_folder
from dlemu.runner.run_list import Planned, RunBegan, RunEnded, RunList, RunsPlanned
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


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Jobs that ran at the same time: one alone, or all."""

    runs: dict[int, MeasuredJob]
    """Index of the job in the question -> what was measured of it."""


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
    alone: MeasuredJob | None
    """None until it has run, and with --no-alone."""
    beside: MeasuredJob | None
    """Its run together with the others; None until it has run."""

    @property
    def title(self) -> str:
        """Its command and workload."""
        measured = self.beside or self.alone
        figures = measured and measured.figures
        return f"{self.command} {figures.workload}{scaled(figures.sample_divisor)}" if figures else self.command

    @property
    def cost(self) -> dict[str, Difference]:
        """Metric -> difference of together (A) to alone (B), for the metrics that both runs have."""
        if self.alone is None or self.beside is None:
            return {}
        beside, alone = self.beside.figures.metrics, self.alone.figures.metrics
        return {name: difference(beside[name], alone[name]) for name in beside if name in alone}

    @property
    def loss(self) -> Loss | None:
        """What it lost most of its main metrics; None where not both runs have one."""
        if self.beside is None:
            return None
        cost, catalogue = self.cost, catalogue_of(self.beside.figures.kind)
        for metrics in (catalogue.headlines, catalogue.compared):
            known = [Loss(metric, cost[metric.name]) for metric in metrics if metric.name in cost]
            if known:
                return max(known, key=lambda loss: (loss.is_certain, loss.percent))
        return None


@dataclass(frozen=True)
class Loss:
    """What the others cost a job in one metric."""

    metric: Metric
    cost: Difference

    @property
    def percent(self) -> float:
        """The share of its speed that the job lost, %; below 0: gained."""
        fast, slow = (self.cost.b, self.cost.a) if self.metric.better == "higher" else (self.cost.a, self.cost.b)
        return 100 * (1 - slow / fast) if fast and self.metric.better != "neither" else 0.0

    @property
    def is_certain(self) -> bool:
        """Whether it lost more than the uncertainty, which is unknown without repetitions."""
        return self.percent >= SAME_PERCENT and self.cost.distinct is True

    def __str__(self) -> str:
        told = in_words(self.cost, better=self.metric.better, a="together", b="alone")
        return f"{self.metric.title} {self.cost.b:,.3g} {self.metric.unit} alone, {self.cost.a:,.3g} together: {told}"


@dataclass(frozen=True, kw_only=True)
class Together:
    """Concurrent jobs: together.json."""

    schema_version: int = ANSWER_VERSION
    complete: bool
    question: TogetherQuestion
    turns: tuple[Turn, ...]
    """Each job alone, then all of them."""
    verdict: str = ""
    """What the job lost that lost most, as a sentence; empty before all have run both ways, and with --no-alone."""

    @property
    def jobs(self) -> list[JobTogether]:
        """What the others cost each job."""
        alone, beside = (
            {job: run for turn in self.turns if (len(turn.runs) == 1) is one for job, run in turn.runs.items()}
            for one in (True, False)
        )
        return [
            JobTogether(command=words[0], alone=alone.get(number), beside=beside.get(number))
            for number, words in enumerate(self.question.jobs)
        ]

    @property
    def losses(self) -> dict[int, Loss]:
        """Number of each job, from 1 -> what the others cost it."""
        return {number: loss for number, one in enumerate(self.jobs, start=1) if (loss := one.loss) is not None}

    @property
    def issues(self) -> list[str]:
        """What a reader of these numbers must know, as sentences."""
        return [
            f"job {number} ({one.command}) ran with others for {one.beside.overlap_percent:.0f} % of its time: make "
            "the shorter ones longer (train.epochs, checkpoint.num_checkpoints_write) to see what they cost it"
            for number, one in enumerate(self.jobs, start=1)
            if one.beside is not None and one.beside.overlap_percent < WANTED_OVERLAP_PERCENT
        ]


def verdict_of(answer: Together) -> str:
    """Return which job lost most, of those that lost more than the uncertainty; empty without a cost of any."""
    losses = answer.losses
    certain = [(loss.percent, number) for number, loss in losses.items() if loss.is_certain]
    if certain:
        _, number = max(certain)
        return f"lost most: job {number}, {losses[number]}"
    unknown = any(loss.cost.distinct is None for loss in losses.values())
    why = ": too few repetitions (epochs, checkpoints) for an interval" * unknown
    return f"no job lost anything that can be told{why}" if losses else ""


Jobs = dict[int, Child]
"""The jobs of a turn by their index."""
OnEvent = Callable[[RunsPlanned | RunBegan | RunEnded[Turn, Together]], object]


def run_together(
    asked: Sequence[Sequence[str]],
    *,
    commands: Sequence[str] = (),
    alone: bool = True,
    folder: str = "",
    config_dir: str | None = None,
    on_event: OnEvent = lambda event: None,
) -> tuple[Together, str]:
    """Run jobs alone, then side by side; return the answer and its folder.

    Args:
        asked: the overrides of each job.
        commands: the command of each (train, checkpoint, ...); by default the one that each workload needs.
        alone: run each alone first, to say what the others cost it.
        folder: where the results go; an interrupted study in it is continued.
        config_dir: a folder with workload/NAME.yaml.
        on_event: is called with each event.

    Raises UserError before the first job for wrong settings of any, and UserError or DlemuError for one that fails.
    """
    check_launcher("together", "")
    if len(asked) < 2:
        raise UserError("only one job is named: wanted two or more")
    named = zip(asked, commands or [""] * len(asked), strict=True)
    jobs = {number: _child(words, command, config_dir) for number, (words, command) in enumerate(named)}
    folder = folder or new_folder("together")
    question = TogetherQuestion(
        jobs=tuple(
            (one.kind.command, *without_secrets(words)) for one, words in zip(jobs.values(), asked, strict=True)
        ),
        settings_digest=digest([one.workload for one in jobs.values()]),
    )
    turns: list[Jobs] = [*([{number: one} for number, one in jobs.items()] if alone else []), jobs]
    planned = [
        Planned(
            what=turn,
            name="",  # each job has a folder of its own
            label=" and ".join(map(_label, turn.values())) + " alone" * (len(turn) == 1),
            settings={},
        )
        for turn in turns
    ]
    runs = Study(folder, question, planned, on_event)
    runs.resume()
    return runs.run_missing(), folder


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
        return run.runs.keys() == planned.what.keys()

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
        runs, spans = zip(*map(_measured, folders), strict=True)
        if len(jobs) > 1:
            others = (spans[:number] + spans[number + 1 :] for number in range(len(spans)))
            shares = map(overlap_percent, spans, others)
            runs = tuple(replace(run, overlap_percent=share) for run, share in zip(runs, shares, strict=True))
        return Turn(runs=dict(zip(jobs, runs, strict=True)))


def _child(words: Sequence[str], command: str, config_dir: str | None) -> Child:
    """Return a job, checked; raises UserError."""
    if take_word(words, "output.folder")[0]:
        raise UserError("output.folder is set for a job: name the folder of all of them with --output")
    workload = load(words, config_dir=config_dir)
    kind = kind_of_command(command) if command else kind_wanted(workload)
    if not kind.is_job:
        raise UserError(f"`dlemu {kind.command}` is no job with ranks: wanted train, checkpoint, or another such job")
    job = kind.load_job().job
    whole = checked(workload, job)
    check_ahead(job, whole)
    return Child.of(kind, whole, words, config_dir=config_dir)


def _label(child: Child) -> str:
    """Return a job's description for the progress line."""
    ranks = count(child.workload.ranks, "rank")
    return f"{child.kind.command} {child.workload.model.name}, {ranks}{scaled(sample_divisor(child.workload))}"


def _measured(folder: str) -> tuple[MeasuredJob, Span]:
    """Return what was measured of the run in a folder, and its time."""
    run, figures = read_figures(folder)
    times = run.summary.started_at, run.summary.ended_at or run.summary.started_at
    began, ended = (datetime.fromisoformat(time).timestamp() for time in times)
    return MeasuredJob(folder=os.path.basename(folder), figures=figures), (began, ended)


def overlap_percent(own: Span, others: Sequence[Span]) -> float:
    """Return the share of a time span, %, that is covered by any of the others; 0 for an empty span."""
    covered, at = 0.0, own[0]
    for begin, end in sorted(others):
        begin, end = max(begin, at), min(end, own[1])
        if end > begin:
            covered, at = covered + end - begin, end
    return 100 * covered / (own[1] - own[0]) if own[1] > own[0] else 0.0
