"""The same run over several values: one full `dlemu train` for each point, put beside each other in sweep.json."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from datagen.errors import DlemuError, UserError
from datagen.inspection import inspect
from dlemu.config import check_runnable, datagen_command, load
from dlemu.config.points import Point, check_points, points
from dlemu.config.schema import Workload
from dlemu.results.answer_files import read_answer, save_answer
from dlemu.results.folder import read_run
from dlemu.run.run_folder import new_folder
from dlemu.sizing.answers import SWEEP, RunFigures, SweepAnswer, SweepPoint, SweepQuestion, check_same
from dlemu.sizing.prerequisites import check_launcher, take_word
from dlemu.sizing.sides import run_figures
from dlemu.sizing.sizing_events import OnEvent, PointBegan, PointEnded, SweepBegan, ignore
from dlemu.sizing.train_process import run_train

RunPoint = Callable[[Point, str], RunFigures]
"""Runs a point into a folder; raises DlemuError with what the run said."""


def sweep(
    overrides: Sequence[str], *, launcher: str = "", config_dir: str | None = None, on_event: OnEvent = ignore
) -> SweepAnswer:
    """Run every combination of the values given; a point that fails is noted, and the others go on.

    Args:
        overrides: as of `dlemu train`, some keys with several values; also `output.folder=...`.
        launcher: the command that starts the ranks, with `{ranks}` in it; also `launcher=...` among the overrides.
        config_dir: a folder with workload/NAME.yaml.
        on_event: is called with what goes on.

    An interrupted sweep is in `output.folder`, and goes on from there when it is called with the same question. Raises
    UserError before the first point for what is wrong with any.
    """
    launcher_word, words = take_word(overrides, "launcher")
    launcher = launcher_word or launcher
    check_launcher("sweep", launcher)
    wanted_folder, words = take_word(words, "output.folder")
    all_points = points(words)
    check_points(all_points)
    first = _check(all_points, config_dir)
    folder = wanted_folder or new_folder(first.model.name, "sweep-")
    question = SweepQuestion(overrides=tuple(words), launcher=launcher)
    finished = finished_points(folder, question)
    on_event(SweepBegan(folder=folder, workload=first, points=len(all_points), finished_points=len(finished)))
    options = ("--config-dir", config_dir) if config_dir else ()
    return run_points(question, all_points, folder, finished, _train(options, launcher), on_event)


def _check(all_points: Sequence[Point], config_dir: str | None) -> Workload:
    """Check every point before any of them runs; return the first one's workload."""
    workloads: list[Workload] = []
    problems: dict[str, str] = {}
    for point in all_points:
        try:
            workload = load(point.words, config_dir=config_dir)
            if workload.workflow.checkpoint and not (workload.workflow.train or workload.workflow.generate_data):
                raise UserError(
                    f"{workload.model.name} asks for checkpoints alone, and a sweep runs `dlemu train`: run "
                    "`dlemu checkpoint` with each value and an output.folder of its own, then `dlemu compare A B`"
                )
            check_runnable(workload)
            storage = workload.storage_spec
            if (workload.dataset, storage) not in [(other.dataset, other.storage_spec) for other in workloads]:
                inspect(workload.dataset, command_hint=partial(datagen_command, workload), storage=storage)
            workloads.append(workload)
        except UserError as error:
            problems.setdefault(str(error), named(point.settings))  # one missing dataset is one problem
    if problems:
        raise UserError("\n".join(f"{name}: {error}" for error, name in problems.items()))
    return workloads[0]


def named(settings: dict[str, str]) -> str:
    """Return the settings of a point as on the command line."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


def finished_points(folder: str, question: SweepQuestion) -> tuple[SweepPoint, ...]:
    """Return the completed points of an interrupted sweep of the same; raises UserError when there is nothing to do."""
    saved = read_answer(folder, SWEEP, SweepAnswer)
    if saved is None:
        return ()
    if saved.complete and all(point.failure is None for point in saved.points):
        raise UserError(f"{folder} holds a finished sweep; set output.folder to a new folder, or read its {SWEEP}")
    check_same(folder, asdict(saved.question), asdict(question))
    return tuple(point for point in saved.points if point.failure is None)


def run_points(
    question: SweepQuestion,
    all_points: Sequence[Point],
    folder: str,
    finished: Sequence[SweepPoint],
    run: RunPoint,
    on_event: OnEvent = ignore,
) -> SweepAnswer:
    """Run the points that are not finished, save sweep.json after each, and return it."""
    results: list[SweepPoint] = []
    for number, point in enumerate(all_points, start=1):
        result = next((kept for kept in finished if kept.settings == point.settings), None)
        if result is None:
            on_event(PointBegan(settings=point.settings))
            result = _run_point(point, folder, f"point-{number:02}", run)
            on_event(PointEnded(point=result))
        results.append(result)
        answer = SweepAnswer(complete=number == len(all_points), question=question, points=tuple(results))
        save_answer(folder, SWEEP, answer)
    return answer


def _run_point(point: Point, folder: str, name: str, run: RunPoint) -> SweepPoint:
    path = os.path.join(folder, name)
    shutil.rmtree(path, ignore_errors=True)  # a point that was interrupted
    os.makedirs(path)
    try:
        return SweepPoint(settings=point.settings, folder=name, figures=run(point, path))
    except DlemuError as error:
        return SweepPoint(settings=point.settings, folder=name, failure=str(error), exit_status=error.exit_status)


def _train(options: Sequence[str], launcher: str) -> RunPoint:
    """Return what runs a point by `dlemu train`."""

    def run(point: Point, folder: str) -> RunFigures:
        given = (word.split("=", 1)[1] for word in reversed(point.words) if word.startswith("ranks="))
        ranks = point.settings.get("ranks") or next(given, "1")
        # a point runs to its end, whatever it shows on the way
        run_train([*options, *point.words], folder, lambda: None, shlex.split(launcher.format(ranks=ranks)))
        return run_figures(read_run(folder))

    return run
