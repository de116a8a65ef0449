"""Packing at one point or over several values, one process of its own for each, put side by side in pack.json."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from datagen import owned
from datagen.atomic import write_text
from datagen.errors import DlemuError, UserError
from datagen.packing.packed_set import JOURNAL_NAME, PACKED_NAME, read_set, remove_set
from datagen.registry import find
from datagen.storage.storage_base import FOLDERS, StorageBase, open_storage
from dlemu.comm import detect_launcher
from dlemu.config.overrides import take_word
from dlemu.config.points import Point, check_each, named, points
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.jobs.pack.process import FIGURES, PROGRESS, Order
from dlemu.jobs.pack.result import PACK, PackAnswer, PackFigures, PackPoint, PackQuestion
from dlemu.jobs.pack.words import PACKED, PackSettings, read_words
from dlemu.results.answer_files import read_answer
from dlemu.runner.child_run import run_command
from dlemu.runner.run_folder import new_folder
from dlemu.runner.run_list import Planned, RunBegan, RunEnded, RunList, RunsPlanned


@dataclass(frozen=True, kw_only=True)
class PackProgress:
    """How far a point is; about once a second."""

    images: int
    total_images: int
    read_bytes: int
    seconds: float
    """On a clock that only ever grows."""


PackEvent = RunsPlanned | RunBegan | PackProgress | RunEnded[PackPoint, PackAnswer]
OnEvent = Callable[[PackEvent], None]


@dataclass(frozen=True)
class Checked:
    """A packing that may begin."""

    point: Point
    settings: PackSettings
    workload: Workload | None
    config_dir: str | None

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
        """Raise UserError where the packed files of somebody else, or anything, are in their folder."""
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
    if detect_launcher() != "none":
        raise UserError(
            "dlemu pack was started by mpirun, srun or torchrun: start it once, without a launcher; it starts its own "
            "processes"
        )
    wanted_folder, words = take_word(overrides, "output.folder")
    checked = check_each(points(words), lambda point: Checked(point, *read_words(point.words, config_dir), config_dir))
    folder = wanted_folder or new_folder(PACK.partition(".")[0])
    planned = [
        Planned(
            what=one,
            name=f"point-{number:02}",
            label=named(one.point.settings) or "packing",
            settings=one.point.settings,
        )
        for number, one in enumerate(checked, start=1)
    ]
    runs = Packing(folder, PackQuestion(overrides=tuple(without_secrets(words))), planned, on_event)
    runs.goes_on = len(planned) > 1
    runs.resume()
    if make is not None:
        workloads = [one.workload for one in checked if one.workload is not None]
        for workload in {(each.dataset, each.storage_spec): each for each in workloads}.values():
            make(workload)
    runs.check_targets()
    return runs.run_missing()


class Packing(RunList[Checked, PackPoint, PackAnswer]):
    """One packing, whose failure is raised, or several, which go on."""

    file, noun, runs_in, answer_type = PACK, "packing", "points", PackAnswer
    on_event: OnEvent

    def answer(self, *, complete: bool) -> PackAnswer:
        """Return the packings on record."""
        last = self.planned[-1].what
        target = "" if self.goes_on and not last.settings.keep else last.target
        return PackAnswer(complete=complete, question=self.question, points=tuple(self.runs), target=target)

    def check_targets(self) -> None:
        """Raise UserError for a target that holds what these packings did not make."""
        missing, claimed = self.missing, owned.claimed(self.folder)
        for planned in self.planned:
            target = self._target(planned)
            planned.what.check_target(target)
            if self.goes_on and planned in missing and f"{planned.name}/" not in claimed:
                planned.what.check_no_set(target)

    def make_folder(self, planned: Planned[Checked]) -> str:
        """Return the folder of a packing that begins."""
        self._taken = owned.take_folder(self.folder, "output.folder", ours=(PACK,))
        return super().make_folder(planned)

    def start(self, planned: Planned[Checked], folder: str) -> PackPoint:
        """Pack in a process of its own; what one of several packs is removed again, unless it is to be kept."""
        one, target = planned.what, self._target(planned)
        if self.goes_on:
            one.remove(target)  # what an interrupted point left
        owned.claim(folder, "order.json", PROGRESS, FIGURES)
        order = Order(words=one.point.words, target=target, config_dir=one.config_dir)
        public = replace(order, words=tuple(without_secrets(order.words)))
        write_text(folder, "order.json", msgspec.json.encode(public).decode())
        command = [sys.executable, "-m", "dlemu.jobs.pack.process", folder]
        try:
            run_command(
                command, folder, lambda: _look(folder, self.on_event), FIGURES, asked=msgspec.json.encode(order)
            )
            with open(os.path.join(folder, FIGURES), "rb") as file:
                figures = msgspec.json.decode(file.read(), type=PackFigures)
        except BaseException as error:
            names_folder = isinstance(error, DlemuError) and not isinstance(error, UserError)
            if not self.goes_on and not names_folder:
                owned.remove_claimed(folder)
                self._taken.drop()
            raise
        finally:
            if self.goes_on and not one.settings.keep:
                one.remove(target)
        return PackPoint(settings=one.point.settings, folder=os.path.basename(folder), figures=figures)

    def failed(self, planned: Planned[Checked], folder: str, error: DlemuError) -> PackPoint | None:
        """Return what goes on record of one of several that failed."""
        name, status = os.path.basename(folder), error.exit_status
        point = PackPoint(settings=planned.what.point.settings, folder=name, failure=str(error), exit_status=status)
        return point if self.goes_on else None

    def _target(self, planned: Planned[Checked]) -> str:
        """Return where a packing's files go: those of several into folders of their own."""
        return os.path.join(planned.what.target, planned.name) if self.goes_on else planned.what.target


def _look(folder: str, on_event: OnEvent) -> None:
    with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, PROGRESS), "rb") as file:
        on_event(msgspec.json.decode(file.read(), type=PackProgress))


def read_pack(folder: str) -> PackAnswer | None:
    """Return the packing that a folder holds, None where it holds none; raises UserError for a damaged one."""
    return read_answer(folder, PACK, PackAnswer)
