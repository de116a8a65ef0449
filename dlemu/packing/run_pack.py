"""Packing at one point or over several values, one process of its own for each, put beside each other in pack.json."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import msgspec

from datagen.atomic import write_text
from datagen.errors import DlemuError, UserError
from dlemu.comm import detect_launcher
from dlemu.config.points import Point, points
from dlemu.config.schema import Workload
from dlemu.packing.pack_answer import PACK, PackAnswer, PackFigures, PackPoint, PackQuestion
from dlemu.packing.pack_process import FIGURES, PROGRESS, Order
from dlemu.packing.pack_settings import PACKED, PackSettings, read_words
from dlemu.results.answer_files import read_answer, save_answer
from dlemu.run.run_folder import missing_folders, new_folder
from dlemu.sizing.answers import check_same
from dlemu.sizing.prerequisites import take_word
from dlemu.sizing.run_sweep import check_each
from dlemu.sizing.train_process import run_command


@dataclass(frozen=True, kw_only=True)
class PackBegan:
    """Every point is checked; none has run yet."""

    folder: str
    points: int
    finished_points: int


@dataclass(frozen=True, kw_only=True)
class PackPointBegan:
    """A point begins."""

    settings: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class PackProgress:
    """How far a point is; about once a second."""

    images: int
    total_images: int
    read_bytes: int
    seconds: float
    """On a clock that only ever grows."""


@dataclass(frozen=True, kw_only=True)
class PackPointEnded:
    """A point has ended, and is saved."""

    point: PackPoint


PackEvent = PackBegan | PackPointBegan | PackProgress | PackPointEnded
OnEvent = Callable[[PackEvent], None]


@dataclass(frozen=True)
class _Checked:
    point: Point
    settings: PackSettings
    workload: Workload | None

    @property
    def target(self) -> str:
        """Return where its packed files go; points of a sweep have folders of their own there."""
        source = self.settings.source or (self.workload.dataset.data_folder if self.workload else "")
        return self.settings.target or os.path.join(source, PACKED)


def pack(
    overrides: Sequence[str],
    *,
    config_dir: str | None = None,
    make: Callable[[Workload], None] | None = None,
    on_event: OnEvent = lambda _event: None,
) -> PackAnswer:
    """Pack, or do so for every combination of the values given; a point that fails is noted, and the others go on.

    Args:
        overrides: settings of `PackSettings` and, to pack a workload's dataset, those of `dlemu datagen`; some keys
            with several values; also `output.folder=...`.
        config_dir: a folder with workload/NAME.yaml.
        make: is called with each workload before the first point, to make its dataset.
        on_event: is called with what goes on.

    What several points pack is removed again after each of them, unless `keep=true`. An interrupted one goes on when it
    is called again with the same `output.folder`; what was packed of a point alone, with the same target. Raises
    UserError before the first point for what is wrong with any, and UserError or DlemuError for a failed point alone.
    """
    if detect_launcher() == "mpi":
        raise UserError("dlemu pack was started by mpirun or srun: start it once, without; it starts its processes")
    wanted_folder, words = take_word(overrides, "output.folder")
    checked = check_each(points(words), lambda point: _Checked(point, *read_words(point.words, config_dir)))
    folder = wanted_folder or new_folder(PACK.partition(".")[0])
    question = PackQuestion(overrides=tuple(words))
    finished = _finished(folder, question)
    if make is not None:
        workloads = [one.workload for one in checked if one.workload is not None]
        for workload in {(each.dataset, each.storage_spec): each for each in workloads}.values():
            make(workload)
    on_event(PackBegan(folder=folder, points=len(checked), finished_points=len(finished)))
    results: list[PackPoint] = []
    for number, one in enumerate(checked, start=1):
        result = next((kept for kept in finished if kept.settings == one.point.settings), None)
        if result is None:
            on_event(PackPointBegan(settings=one.point.settings))
            name = f"point-{number:02}"
            alone = len(checked) == 1
            target = one.target if alone else os.path.join(one.target, name)
            result = _run_point(one, folder, name, target, config_dir, on_event, alone=alone)
            on_event(PackPointEnded(point=result))
        results.append(result)
        answer = PackAnswer(
            complete=number == len(checked),
            question=question,
            points=tuple(results),
            target=one.target if len(checked) == 1 or one.settings.keep else "",
        )
        save_answer(folder, PACK, answer)
    return answer


def _finished(folder: str, question: PackQuestion) -> tuple[PackPoint, ...]:
    saved = read_answer(folder, PACK, PackAnswer)
    if saved is None:
        return ()
    if saved.complete and all(point.failure is None for point in saved.points):
        raise UserError(f"{folder} holds a finished packing; set output.folder to a new folder, or read its {PACK}")
    check_same(folder, asdict(saved.question), asdict(question))
    return tuple(point for point in saved.points if point.failure is None)


def _run_point(
    one: _Checked, folder: str, name: str, target: str, config_dir: str | None, on_event: OnEvent, *, alone: bool
) -> PackPoint:
    path, made = os.path.join(folder, name), missing_folders(folder)
    shutil.rmtree(path, ignore_errors=True)  # a point that was interrupted
    if not alone:
        shutil.rmtree(target, ignore_errors=True)
    order = Order(words=one.point.words, target=target, config_dir=config_dir)
    write_text(path, "order.json", msgspec.json.encode(order).decode())
    command = [sys.executable, "-m", "dlemu.packing.pack_process", os.path.join(path, "order.json"), path]
    try:
        run_command(command, path, lambda: _look(path, on_event), FIGURES)
        with open(os.path.join(path, FIGURES), "rb") as file:
            figures = msgspec.json.decode(file.read(), type=PackFigures)
        return PackPoint(settings=one.point.settings, folder=name, figures=figures)
    except DlemuError as error:
        if alone:
            if isinstance(error, UserError):  # else its message names what lies there
                _drop(folder, made)
            raise
        return PackPoint(settings=one.point.settings, folder=name, failure=str(error), exit_status=error.exit_status)
    except BaseException:
        if alone:
            _drop(folder, made)
        raise
    finally:
        if not alone and not one.settings.keep:
            shutil.rmtree(target, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.rmdir(one.target)


def _drop(folder: str, made: Sequence[str]) -> None:
    """Leave no folder of results where nothing was measured: what was packed lies in the target."""
    shutil.rmtree(folder, ignore_errors=True)
    for above in reversed(made[:-1]):
        with contextlib.suppress(OSError):  # other results lie beside it
            os.rmdir(above)


def _look(folder: str, on_event: OnEvent) -> None:
    with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, PROGRESS), "rb") as file:
        on_event(msgspec.json.decode(file.read(), type=PackProgress))
