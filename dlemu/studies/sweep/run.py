"""`dlemu sweep`: a full `dlemu train` or `dlemu checkpoint` for each combination of values; results in sweep.json."""

from __future__ import annotations

import os
from collections.abc import Sequence

from datagen.errors import DlemuError, UserError
from dlemu.config import digest, load
from dlemu.config.overrides import Point, check_each, check_points, named, points, take_word
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.results.kinds import Kind, kind_requested, read_figures
from dlemu.runner.child_run import run_train
from dlemu.runner.events import ignore
from dlemu.runner.job import AnyKind, Look, checked
from dlemu.runner.run_folder import new_folder
from dlemu.runner.run_list import Planned, RunList
from dlemu.studies.answers import SWEEP, SweepAnswer, SweepPoint, SweepQuestion
from dlemu.studies.prerequisites import Child, OnEvent, check_launcher


def sweep(
    overrides: Sequence[str], *, launcher: str = "", config_dir: str | None = None, on_event: OnEvent = ignore
) -> SweepAnswer:
    """Run every combination of the values given; a point that fails is noted, and the others go on.

    Args:
        overrides: as of `dlemu train` (or `dlemu checkpoint`, for a workload that only has checkpoints), some keys with
            several values; also `output.folder=...`.
        launcher: the command that starts the ranks, with `{ranks}` in it; also `launcher=...` among the overrides.
        config_dir: a folder with workload/NAME.yaml.
        on_event: is called with each event.

    An interrupted sweep goes on from its `output.folder` when it is called again with the same arguments. Raises
    UserError before the first point for wrong settings of any.
    """
    launcher_word, words = take_word(overrides, "launcher")
    launcher = launcher_word or launcher
    check_launcher("sweep", launcher)
    wanted_folder, words = take_word(words, "output.folder")
    all_points = points(words)
    check_points(all_points)
    checked_points = _check(all_points, config_dir)
    _, first = checked_points[0]
    folder = wanted_folder or new_folder(first.results_name, "sweep-")
    planned = [
        Planned(
            what=Child.of(kind, workload, point.words, config_dir=config_dir, launcher=launcher),
            name=f"point-{number:02}",
            label=named(point.settings),
            settings=point.settings,
        )
        for number, (point, (kind, workload)) in enumerate(zip(all_points, checked_points, strict=True), start=1)
    ]
    question = SweepQuestion(
        overrides=tuple(without_secrets(words)),
        launcher=launcher,
        settings_digest=digest([workload for _, workload in checked_points]),
    )
    runs = Sweep(folder, question, planned, on_event)
    runs.resume()
    return runs.run_missing(wants_page=first.output.report)


def _check(all_points: Sequence[Point], config_dir: str | None) -> list[tuple[Kind, Workload]]:
    """Check every point before any of them runs; return their kinds of job, which are the same, and workloads."""
    looks: dict[str, Look] = {}

    def check(point: Point) -> tuple[Kind, Workload]:
        workload = load(point.words, config_dir=config_dir)
        kind = kind_requested(workload)
        job: AnyKind = kind.load_job().job
        whole = checked(workload, job)
        looks.setdefault(kind.name, job.look_at_points())(whole)
        return kind, workload

    found = check_each(all_points, check)
    nouns = sorted({kind.noun for kind, _ in found})
    if len(nouns) > 1:
        raise UserError(f"some points are {' and some '.join(nouns)}, which share no metric: sweep each separately")
    return found


class Sweep(RunList[Child, SweepPoint, SweepAnswer]):
    """The runs of a sweep."""

    file, noun, runs_in, answer_type, goes_on = SWEEP, "sweep", "points", SweepAnswer, True

    def answer(self, *, complete: bool) -> SweepAnswer:
        """Return the sweep with the points that have run."""
        return SweepAnswer(complete=complete, question=self.question, points=tuple(self.runs))

    def failed(self, planned: Planned[Child], folder: str, error: DlemuError) -> SweepPoint:
        """Return the record of a point that failed."""
        return SweepPoint(
            settings=dict(planned.settings),
            folder=os.path.basename(folder),
            failure=str(error),
            exit_status=error.exit_status,
        )

    def start(self, planned: Planned[Child], folder: str) -> SweepPoint:
        """Run a point by the command of its kind of job."""
        child = planned.what
        with child.kind.load_job().job.own_place(child.workload, folder) as own:
            # unlike a trial of a search, a point always runs to its end
            run_train([*child.words, *own], folder, lambda: None, child.launcher, child.kind.command)
        figures = read_figures(folder)[1]
        return SweepPoint(settings=dict(planned.settings), folder=os.path.basename(folder), figures=figures)
