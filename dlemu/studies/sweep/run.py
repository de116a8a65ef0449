"""Runs a job with all combinations of values, or searches for the largest value that passes; writes sweep.json."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from datagen.errors import DlemuError, UserError
from datagen.withheld import redact_argv
from dlemu.config import digest, load
from dlemu.config.overrides import DATA_FOLDER, Point, check_points, named, override, points, take_word
from dlemu.results.kinds import kind_needed, kind_to_run, read_figures
from dlemu.runner.child_run import run_train
from dlemu.runner.events import ignore
from dlemu.runner.job import checked
from dlemu.runner.job_kind import DataCheck
from dlemu.runner.run_folder import new_folder
from dlemu.runner.run_list import Planned, RunList, RunsPlanned
from dlemu.studies.answers import SWEEP, SweepAnswer, SweepPoint, SweepQuestion, edge
from dlemu.studies.prerequisites import Child, OnEvent, config_options, take_launcher

CLOSE = 1.1  # a search ends when the smallest failing value is at most this factor above the largest passing one
_MAX_FACTOR = 1024.0  # between the first value and any other that is tried


def sweep(overrides: Sequence[str], *, config_dir: str | None = None, on_event: OnEvent = ignore) -> SweepAnswer:
    """Run every combination of the values, and return the answer; a failed point is recorded, and the sweep goes on.

    `overrides` are those of `dlemu train` (or of the command that the workload needs), some keys with several values,
    and `launcher`. Called again with the same arguments, it continues an interrupted sweep in its `output.folder`.
    Raises UserError before the first point if the settings of any point are wrong.
    """
    launcher, other_overrides = take_launcher("sweep", overrides)
    folder, run_overrides = take_word(other_overrides, "output.folder")
    all_points = points(run_overrides)
    check_points(all_points)
    children = _children(all_points, config_dir)
    planned = [
        Planned(what=child, name=f"point-{number:02}", label=named(point.settings), settings=point.settings)
        for number, (point, child) in enumerate(zip(all_points, children, strict=True), start=1)
    ]
    workloads = [child.workload for child in children]
    public_overrides = tuple(redact_argv(run_overrides))
    question = SweepQuestion(overrides=public_overrides, launcher=launcher, settings_digest=digest(workloads))
    runs = Sweep(folder or new_folder(workloads[0].results_name, "sweep-"), question, planned, on_event)
    runs.resume()
    return runs.run_missing(wants_page=workloads[0].output.report)


def _children(all_points: Sequence[Point], config_dir: str | None) -> list[Child]:
    """Return the checked run of each point; raises UserError for wrong settings, and for several kinds of jobs."""
    data_checks: dict[str, DataCheck] = {}
    children = []
    for point in all_points:
        try:
            workload = load(point.words, config_dir=config_dir)
            kind = kind_needed(workload)
            job = kind.load_job().job
            if kind.name not in data_checks:  # points of one kind share a check, which looks at each dataset once
                data_checks[kind.name] = job.look_at_points()
            complete = checked(workload, job)
            if DATA_FOLDER in point.settings and complete.dataset.data_folder not in job.looks_at(complete):
                raise UserError(f"{DATA_FOLDER} has several values, but this job uses {job.looks_at(complete)}")
            data_checks[kind.name](complete)
        except UserError as error:
            raise UserError(f"{named(point.settings)}: {error}") from error
        children.append(Child(kind, workload, (*config_options(config_dir), *point.words)))
    nouns = sorted({child.kind.noun for child in children})
    if len(nouns) > 1:
        raise UserError(f"some points are {' and some '.join(nouns)}, which share no metric: sweep each separately")
    return children


class Sweep(RunList[Child, SweepPoint, SweepAnswer]):
    """The runs of a sweep, one for each combination of values, each as a dlemu command of its own."""

    file, noun, runs_in, answer_type = SWEEP, "sweep", "points", SweepAnswer
    goes_on = True  # after a failed point; it is recorded, and repeated when the sweep is resumed

    def answer(self, *, complete: bool) -> SweepAnswer:
        return SweepAnswer(complete=complete, question=self.question, points=tuple(self.runs))

    def start(self, planned: Planned[Child], folder: str) -> SweepPoint:
        child = planned.what
        point = SweepPoint(settings=dict(planned.settings), folder=os.path.basename(folder))
        launcher = shlex.split(self.question.launcher.format(ranks=child.workload.ranks))
        try:
            with child.kind.load_job().job.own_place(child.workload, folder) as own:
                run_train([*child.argv, *own], folder, lambda: None, launcher, child.kind.command)
            return replace(point, figures=read_figures(folder)[1])
        except DlemuError as error:
            if not self.goes_on:
                raise
            return replace(point, failure=str(error), exit_status=error.exit_status)


def find_bracket(overrides: Sequence[str], *, config_dir: str | None, on_event: OnEvent) -> SweepAnswer:
    """Find the largest passing value of the setting that scales the load of a kind of job (`Kind.scaled_by`).

    It starts from the workload's value, or continues an interrupted search in its `output.folder`. Raises UserError,
    also if a run neither passes nor fails, and DlemuError if a run ends with an error.
    """
    launcher, other_overrides = take_launcher("size", overrides)
    folder, run_overrides = take_word(other_overrides, "output.folder")
    workload = load(run_overrides, config_dir=config_dir)
    kind = kind_to_run(workload)
    checked(workload, kind.load_job().job)
    section, _, name = kind.scaled_by.partition(".")
    first = float(str(workload.kinds[section][name]))
    child = Child(kind, workload, (*config_options(config_dir), *run_overrides))
    public_overrides = tuple(redact_argv(run_overrides))
    question = SweepQuestion(
        overrides=public_overrides, launcher=launcher, most_of=kind.scaled_by, settings_digest=digest([workload])
    )
    runs = BracketSearch(folder or new_folder(workload.results_name, "size-"), question, (), on_event)
    runs.resume()
    return runs.search(child, first, wants_page=workload.output.report)


class BracketSearch(Sweep):
    """A search: a sweep over one setting (`most_of`) in which the results so far decide the next value."""

    noun, goes_on = "search", False

    def search(self, child: Child, first: float, *, wants_page: bool) -> SweepAnswer:
        """Run values, from `first` on, until the bracket is narrow enough; return all runs as a sweep."""
        key = self.question.most_of
        self.on_event(RunsPlanned(folder=self.folder, runs=None, finished_runs=len(self.runs), wants_page=wants_page))
        while (value := next_value(self._passed_by_value(key), first)) is not None:
            setting = override(key.split("."), value)
            planned = Planned(
                what=replace(child, argv=(*child.argv, setting)),
                name=f"point-{len(self.runs) + 1:02}",
                label=setting,
                settings={key: f"{value:g}"},
            )
            self.run_one(planned)
        return self.save(complete=True)

    def _passed_by_value(self, key: str) -> dict[float, bool]:
        """Return value -> whether it passed; raises UserError for a run without verdict, if no smaller value passed."""
        runs = {float(point.settings[key]): point.figures for point in self.runs if point.figures}
        smallest_passing = min((value for value, run in runs.items() if run.passed), default=math.inf)
        for value, run in runs.items():
            if run.passed is None and value < smallest_passing:
                raise UserError(
                    f"the run at {key}={value:g} neither passed nor failed ({run.verdict}): wanted a limit to judge it "
                    "by, and runs that are long enough"
                )
        # Above a passing value, a run without verdict counts as failed: the answer may be too small, but it has passed.
        return {value: bool(run.passed) for value, run in runs.items()}


def next_value(passed_by_value: Mapping[float, bool], first: float) -> float | None:
    """Return the value to try next, to three digits; None if the bracket is narrow enough, or no edge is near `first`.

    Values are doubled until one fails, or halved until one passes; then the bracket is split at its geometric mean.
    """
    if not passed_by_value:
        return first
    passing, failing = edge(sorted(passed_by_value.items()))
    if failing is None:
        return 2 * passing if passing and passing < _MAX_FACTOR * first else None
    if passing is None:
        return failing / 2 if failing > first / _MAX_FACTOR else None
    middle = float(f"{math.sqrt(passing * failing):.3g}")
    return middle if failing / passing > CLOSE and passing < middle < failing else None
