"""The same run over several values: one full `dlemu train` or `checkpoint` for each point, together in sweep.json."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from datagen import owned
from datagen.errors import DlemuError, UserError
from datagen.inspection import inspect
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import FOLDER_TYPES, StorageSpec, open_storage
from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.stored import folder_of, remove_checkpoint, stored_checkpoints
from dlemu.config import check_checkpoints, check_runnable, datagen_command, load
from dlemu.config.overrides import override
from dlemu.config.points import Point, check_points, points
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.results.answer_files import read_answer, save_answer
from dlemu.results.checkpoint_folder import read_checkpoint_run
from dlemu.results.folder import read_run
from dlemu.run.prepare_checkpoints import with_checkpoints
from dlemu.run.run_folder import check_place, new_folder
from dlemu.sizing.answers import (
    SWEEP,
    CheckpointFigures,
    RunFigures,
    SweepAnswer,
    SweepPoint,
    SweepQuestion,
    check_same,
)
from dlemu.sizing.compare_checkpoints import checkpoint_figures
from dlemu.sizing.prerequisites import check_launcher, take_word
from dlemu.sizing.sides import run_figures
from dlemu.sizing.sizing_events import OnEvent, PointBegan, PointEnded, SweepBegan, ignore
from dlemu.sizing.train_process import run_train

T = TypeVar("T")

RunPoint = Callable[[Point, str], RunFigures | CheckpointFigures]
"""Runs a point into a folder; raises DlemuError with what the run said."""


def sweep(
    overrides: Sequence[str], *, launcher: str = "", config_dir: str | None = None, on_event: OnEvent = ignore
) -> SweepAnswer:
    """Run every combination of the values given; a point that fails is noted, and the others go on.

    Args:
        overrides: as of `dlemu train`, or of `dlemu checkpoint` for a workload of checkpoints alone, some keys with
            several values; also `output.folder=...`.
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
    workloads = _check(all_points, config_dir)
    first = workloads[0]
    folder = wanted_folder or new_folder(first.model.name, "sweep-")
    check_place(folder, ours=(SWEEP,))
    question = SweepQuestion(overrides=tuple(without_secrets(words)), launcher=launcher)
    finished = finished_points(folder, question)
    on_event(SweepBegan(folder=folder, workload=first, points=len(all_points), finished_points=len(finished)))
    options = ("--config-dir", config_dir) if config_dir else ()
    of_point = {point.words: workload for point, workload in zip(all_points, workloads, strict=True)}
    return run_points(question, all_points, folder, finished, partial(_run, of_point, options, launcher), on_event)


def _check(all_points: Sequence[Point], config_dir: str | None) -> list[Workload]:
    """Check every point before any of them runs; return their workloads."""
    inspected: list[tuple[DatasetSpec, StorageSpec]] = []

    def check(point: Point) -> Workload:
        workload = load(point.words, config_dir=config_dir)
        if _only_saves(workload):
            _check_saves(with_checkpoints(workload))
            return workload
        check_runnable(workload)
        data = workload.dataset, workload.storage_spec
        if data not in inspected:
            inspect(workload.dataset, command_hint=partial(datagen_command, workload), storage=workload.storage_spec)
            inspected.append(data)
        return workload

    workloads = check_each(all_points, check)
    if len(set(map(_only_saves, workloads))) > 1:
        raise UserError("some points train and some only save checkpoints, which have no figure in common: sweep apart")
    return workloads


def check_each(all_points: Sequence[Point], check: Callable[[Point], T]) -> list[T]:
    """Return what `check` makes of every point; raises one UserError with all that it raised."""
    checked: list[T] = []
    problems: dict[str, str] = {}
    for point in all_points:
        try:
            checked.append(check(point))
        except UserError as error:
            problems.setdefault(str(error), named(point.settings))  # one missing dataset is one problem
    if problems:
        raise UserError("\n".join(f"{name}: {error}" if name else error for error, name in problems.items()))
    return checked


def _only_saves(workload: Workload) -> bool:
    """Say whether a workload is of checkpoints alone: `dlemu checkpoint` runs it."""
    return workload.workflow.checkpoint and not (workload.workflow.train or workload.workflow.generate_data)


def _check_saves(workload: Workload) -> None:
    settings = workload.checkpoint
    check_checkpoints(workload)
    plan_checkpoint(workload.model, settings, workload.ranks)
    if settings.node_local and settings.num_checkpoints_write > 0:
        raise UserError(
            "checkpoint.node_local is true: a sweep removes what each point wrote, and can't do so on other hosts; run "
            "`dlemu checkpoint` with each value instead"
        )


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
    path = owned.fresh_folder(folder, name)
    name = os.path.basename(path)  # another one where an interrupted point, or somebody else, has that
    try:
        figures = run(point, path)
    except DlemuError as error:
        return SweepPoint(settings=point.settings, folder=name, failure=str(error), exit_status=error.exit_status)
    if isinstance(figures, CheckpointFigures):
        return SweepPoint(settings=point.settings, folder=name, checkpoints=figures)
    return SweepPoint(settings=point.settings, folder=name, figures=figures)


def _run(
    workloads: Mapping[tuple[str, ...], Workload], options: Sequence[str], launcher: str, point: Point, folder: str
) -> RunFigures | CheckpointFigures:
    """Run a point by `dlemu train` or `dlemu checkpoint`; `workloads` are those of the points' words."""
    workload = workloads[point.words]
    words, start = [*options, *point.words], shlex.split(launcher.format(ranks=workload.ranks))
    if not _only_saves(workload):
        # a point runs to its end, whatever it shows on the way
        run_train(words, folder, lambda: None, start)
        return run_figures(read_run(folder))
    with _own_checkpoints(with_checkpoints(workload), os.path.basename(folder)) as own:
        run_train([*words, *own], folder, lambda: None, start, "checkpoint")
    return checkpoint_figures(read_checkpoint_run(folder).summary)


@contextlib.contextmanager
def _own_checkpoints(workload: Workload, name: str) -> Iterator[list[str]]:
    """Yield the words that have a point write into a folder of its own, below the one asked for; then remove that.

    A run replaces no checkpoints of other ranks, formats or models, and those of all points together want much room.
    """
    settings, storage = workload.checkpoint, open_storage(workload.storage_spec.buffered)
    if settings.num_checkpoints_write < 1:
        yield []
        return
    # under a name that nobody else has: all in it goes again
    folder = f"{settings.checkpoint_folder.rstrip('/')}/{name}-{secrets.token_hex(4)}"
    if workload.storage.storage_type in FOLDER_TYPES:
        folder = os.path.abspath(folder)  # it is joined with the storage's root already
    try:
        yield [override(("checkpoint", "checkpoint_folder"), folder)]
    finally:
        with contextlib.suppress(OSError, UserError):  # what is left takes room, and says so when that is short
            names = plan_checkpoint(workload.model, settings, workload.ranks).names
            for number in stored_checkpoints(storage, folder):
                remove_checkpoint(storage, folder_of(folder, number), names)
            storage.remove_folder(folder)
