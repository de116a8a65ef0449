"""Packing at one point or over several values, one process of its own for each, put beside each other in pack.json."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import msgspec

from datagen import owned
from datagen.atomic import write_text
from datagen.errors import DlemuError, UserError
from datagen.packing.packed_set import JOURNAL_NAME, PACKED_NAME, read_set, remove_set
from datagen.registry import find
from datagen.storage.storage_base import FOLDERS, StorageBase, open_storage
from dlemu.comm import detect_launcher
from dlemu.config.points import Point, points
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.packing.pack_answer import PACK, PackAnswer, PackFigures, PackPoint, PackQuestion
from dlemu.packing.pack_process import FIGURES, PROGRESS, Order
from dlemu.packing.pack_settings import PACKED, PackSettings, read_words
from dlemu.results.answer_files import read_answer, save_answer
from dlemu.run.run_folder import check_place, new_folder
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

    @property
    def storage(self) -> StorageBase:
        """Return where images and packed files lie, open for all that is not measured."""
        return open_storage((self.workload.storage_spec if self.workload else FOLDERS).buffered)

    def check_target(self, target: str) -> None:
        """Raise UserError where the packed files of somebody else, or anything, lie in their folder."""
        if self.storage.local_path(target) is not None:
            owned.check_usable(target, "target", ours=(PACKED_NAME, JOURNAL_NAME))

    def check_no_set(self, target: str) -> None:
        """Raise UserError where another command packed: what points of a sweep pack goes again."""
        if read_set(target, self.storage) is not None:
            raise UserError(f"{target} holds a packed set that another command made: set target to a new folder")

    def remove(self, target: str) -> None:
        """Remove what this point packed, and the folders that hold nothing else."""
        storage = self.storage
        remove_set(target, find("datagen.formats", self.settings.format, "Format"), storage)
        with contextlib.suppress(OSError):
            storage.remove_folder(self.target)


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
    check_place(folder, ours=(PACK,))
    targets = [
        one.target if len(checked) == 1 else os.path.join(one.target, _point(n))
        for n, one in enumerate(checked, start=1)
    ]
    question = PackQuestion(overrides=tuple(without_secrets(words)))
    finished = _finished(folder, question)
    if make is not None:
        workloads = [one.workload for one in checked if one.workload is not None]
        for workload in {(each.dataset, each.storage_spec): each for each in workloads}.values():
            make(workload)
    for number, (one, target) in enumerate(zip(checked, targets, strict=True), start=1):
        one.check_target(target)
        is_new = all(kept.settings != one.point.settings for kept in finished)
        if len(checked) > 1 and is_new and f"{_point(number)}/" not in owned.claimed(folder):
            one.check_no_set(target)
    on_event(PackBegan(folder=folder, points=len(checked), finished_points=len(finished)))
    results: list[PackPoint] = []
    for number, one in enumerate(checked, start=1):
        result = next((kept for kept in finished if kept.settings == one.point.settings), None)
        if result is None:
            on_event(PackPointBegan(settings=one.point.settings))
            target, alone = targets[number - 1], len(checked) == 1
            result = _run_point(one, folder, _point(number), target, config_dir, on_event, alone=alone)
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


def _point(number: int) -> str:
    return f"point-{number:02}"


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
    taken = owned.take_folder(folder, "output.folder", ours=(PACK,))
    path = owned.fresh_folder(folder, name)
    name = os.path.basename(path)
    if not alone:
        one.remove(target)  # what an interrupted point left
    owned.claim(path, "order.json", PROGRESS, FIGURES)
    order = Order(words=one.point.words, target=target, config_dir=config_dir)
    public = replace(order, words=tuple(without_secrets(order.words)))
    write_text(path, "order.json", msgspec.json.encode(public).decode())
    command = [sys.executable, "-m", "dlemu.packing.pack_process", path]
    try:
        run_command(command, path, lambda: _look(path, on_event), FIGURES, asked=msgspec.json.encode(order))
        with open(os.path.join(path, FIGURES), "rb") as file:
            figures = msgspec.json.decode(file.read(), type=PackFigures)
        return PackPoint(settings=one.point.settings, folder=name, figures=figures)
    except DlemuError as error:
        if alone:
            if isinstance(error, UserError):  # else its message names what lies there
                owned.remove_claimed(path)
                taken.drop()
            raise
        return PackPoint(settings=one.point.settings, folder=name, failure=str(error), exit_status=error.exit_status)
    except BaseException:
        if alone:
            owned.remove_claimed(path)
            taken.drop()
        raise
    finally:
        if not alone and not one.settings.keep:
            one.remove(target)


def _look(folder: str, on_event: OnEvent) -> None:
    with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, PROGRESS), "rb") as file:
        on_event(msgspec.json.decode(file.read(), type=PackProgress))
