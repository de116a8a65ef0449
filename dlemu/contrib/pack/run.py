"""Runs one packing, or one for each point of a sweep (a combination of values), one after the other: pack.json."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from datagen import owned
from datagen.manifest import PACKED_NAME
from datagen.registry import find
from datagen.storage.storage_base import FOLDERS
from dlemu.config import digest
from dlemu.config.overrides import take_word
from dlemu.config.points import Point, check_each, named, points
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.contrib.pack.packed_set import JOURNAL_NAME, read_set, remove_set
from dlemu.contrib.pack.process import PackProgress, PackRequest, pack_here
from dlemu.contrib.pack.result import PACK, PackAnswer, PackPoint, PackQuestion
from dlemu.contrib.pack.words import PACKED, PackSettings, read_words
from dlemu.extend import (
    DlemuError,
    Planned,
    RunBegan,
    RunEnded,
    RunList,
    RunsPlanned,
    StorageBase,
    UserError,
    detect_launcher,
    new_folder,
    open_storage,
)
from dlemu.results.answer_files import read_answer

PackEvent = RunsPlanned | RunBegan | PackProgress | RunEnded[PackPoint, PackAnswer]
OnEvent = Callable[[PackEvent], None]


@dataclass(frozen=True)
class CheckedPoint:
    """The checked settings of one packing."""

    point: Point
    settings: PackSettings
    workload: Workload | None

    @property
    def target(self) -> str:
        """The folder of the packed files; points of a sweep have subfolders there."""
        source = self.settings.source or (self.workload.dataset.data_folder if self.workload else "")
        return self.settings.target or os.path.join(source, PACKED)

    @property
    def storage(self) -> StorageBase:
        """The storage of images and packed files, opened for operations that are not measured."""
        return open_storage((self.workload.storage_spec if self.workload else FOLDERS).buffered)

    def remove(self, target: str) -> None:
        """Remove the files that this point packed, and the folders that become empty."""
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
    """Pack once, or once for every combination of the given values; failures of single points of a sweep are recorded.

    Args:
        overrides: settings of `PackSettings` and, to pack a workload's dataset, those of `dlemu datagen`; keys with
            several values make a sweep; also `output.folder=...`.
        config_dir: a folder with workload/NAME.yaml.
        make: called with each workload before the first point, to generate its dataset.
        on_event: called with each event.

    A sweep removes the packed files after each point, unless `keep=true`. An interrupted sweep is resumed by calling it
    again with the same `output.folder`; an interrupted single packing, with the same target. Raises UserError before
    the first point if any is wrong, and UserError or DlemuError if a single packing fails.
    """
    if detect_launcher() != "none":
        raise UserError(
            "dlemu pack was started by mpirun, srun or torchrun: start it once, without a launcher; it starts its own "
            "processes"
        )
    wanted_folder, words = take_word(overrides, "output.folder")
    all_checked = check_each(points(words), lambda point: CheckedPoint(point, *read_words(point.words, config_dir)))
    folder = wanted_folder or new_folder(PACK.partition(".")[0])
    planned = [
        Planned(
            what=checked,
            name=f"point-{number:02}",
            label=named(checked.point.settings) or "packing",
            settings=checked.point.settings,
        )
        for number, checked in enumerate(all_checked, start=1)
    ]
    workloads = [checked.workload for checked in all_checked if checked.workload is not None]
    question = PackQuestion(overrides=tuple(without_secrets(words)), settings_digest=digest(workloads))
    runs = PackRuns(folder, question, planned, on_event)
    runs.goes_on = len(planned) > 1
    runs.resume()
    if make is not None:
        for workload in {(each.dataset, each.storage_spec): each for each in workloads}.values():
            make(workload)
    runs.check_targets()
    return runs.run_missing()


class PackRuns(RunList[CheckedPoint, PackPoint, PackAnswer]):
    """The list of packings: a single one raises its failure, a sweep (`goes_on`) records it and continues."""

    file, noun, runs_in, answer_type = PACK, "packing", "points", PackAnswer
    on_event: OnEvent

    def answer(self, *, complete: bool) -> PackAnswer:
        """Return the answer with the packings done so far."""
        last = self.planned[-1].what
        target = "" if self.goes_on and not last.settings.keep else last.target
        return PackAnswer(complete=complete, question=self.question, points=tuple(self.runs), target=target)

    def check_targets(self) -> None:
        """Raise UserError for a target with files that these packings did not write."""
        missing, claimed = self.missing, owned.claimed(self.folder)
        for planned in self.planned:
            target, storage = self._target(planned), planned.what.storage
            if storage.local_path(target) is not None:
                owned.check_usable(target, "target", ours=(PACKED_NAME, JOURNAL_NAME))
            is_new = planned in missing and f"{planned.name}/" not in claimed
            if self.goes_on and is_new and read_set(target, storage) is not None:  # a sweep would remove it
                raise UserError(f"{target} holds a packed set that another command made: set target to a new folder")

    def make_folder(self, planned: Planned[CheckedPoint]) -> str:
        """Create and return the folder of a packing."""
        self._taken = owned.take_folder(self.folder, "output.folder")
        return super().make_folder(planned)

    def start(self, planned: Planned[CheckedPoint], folder: str) -> PackPoint:
        """Pack; a sweep removes the packed files afterwards, unless `keep` is set."""
        checked, target = planned.what, self._target(planned)
        removes = self.goes_on and not checked.settings.keep
        if self.goes_on:
            checked.remove(target)  # files of an interrupted run of this point
        request = PackRequest(settings=checked.settings, workload=checked.workload, target=target)
        try:
            figures = pack_here(request, self.on_event)
        except BaseException as error:
            if not self.goes_on:
                owned.remove_claimed(folder)
                self._taken.drop()
            left = _remove(checked, target) if removes else ""
            if left and isinstance(error, DlemuError):
                error.args = (f"{error}\n{left}",)
            raise
        if removes and (left := _remove(checked, target)):  # what was measured is measured
            figures = replace(figures, warnings=(*figures.warnings, left))
        return PackPoint(settings=checked.point.settings, folder=os.path.basename(folder), figures=figures)

    def failed(self, planned: Planned[CheckedPoint], folder: str, error: DlemuError) -> PackPoint | None:
        """Return the record of a failed point of a sweep; None for a single packing."""
        if not self.goes_on:
            return None
        settings, name = planned.what.point.settings, os.path.basename(folder)
        return PackPoint(settings=settings, folder=name, failure=str(error), exit_status=error.exit_status)

    def _target(self, planned: Planned[CheckedPoint]) -> str:
        """Return the folder of a packing's files: in a sweep, a subfolder for each."""
        return os.path.join(planned.what.target, planned.name) if self.goes_on else planned.what.target


def _remove(checked: CheckedPoint, target: str) -> str:
    """Remove a point's files; return a sentence where a server, or a drive that fails, keeps some."""
    try:
        checked.remove(target)
    except DlemuError as error:
        return f"{target}: the packed files of this point could not all be removed: {error}"
    return ""


def read_pack(folder: str) -> PackAnswer:
    """Return the packing in a folder; raises UserError."""
    answer = read_answer(folder, PACK, PackAnswer)
    if answer is None:
        raise UserError(f"{folder} has no {PACK}")
    return answer
