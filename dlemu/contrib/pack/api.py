"""Packs once, or once for each point of a sweep (a combination of values), one after the other: pack.json."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from datagen import owned
from dlemu.api import main_thread, make_dataset, overrides_of
from dlemu.config import digest
from dlemu.config.overrides import check_each, named, points, take_word
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.contrib.pack.process import pack_here, remove_point
from dlemu.contrib.pack.result import PACK, PackAnswer, PackPoint, PackQuestion
from dlemu.contrib.pack.settings import PackSettings, read_words
from dlemu.extend import (
    DlemuError,
    Planned,
    RunBegan,
    RunEnded,
    RunList,
    RunsPlanned,
    UserError,
    detect_launcher,
    new_folder,
    take_folder,
)
from dlemu.results.answer_files import read_answer
from dlemu.results.progress import Progress

PackEvent = RunsPlanned | RunBegan | Progress | RunEnded[PackPoint, PackAnswer]


def pack(
    overrides: Sequence[str] | Mapping[str, object] = (),
    /,
    *,
    config_dir: str | None = None,
    make: bool = False,
    on_progress: Callable[[PackEvent], None] = lambda _event: None,
    **settings: object,
) -> PackAnswer:
    """Pack images into few large files: `dlemu pack`. Lists hold several values to measure: `processes=[1, 2, 4]`.

    `make` makes a workload's images first, or those that are missing. Raises UserError, DlemuError.
    """
    words = overrides_of(overrides, settings, several=True)
    with main_thread("pack"):
        return pack_points(words, config_dir, make_dataset if make else None, on_progress)


def pack_points(
    overrides: Sequence[str],
    config_dir: str | None,
    make: Callable[[Workload], None] | None,
    on_event: Callable[[PackEvent], None],
) -> PackAnswer:
    """Pack once, or once for every combination of the given values; failures of single points of a sweep are recorded.

    A sweep removes the packed files after each point. What was interrupted goes on when it is called again with the
    same settings and `output.folder`. Raises UserError before the first point if any is wrong, and UserError or
    DlemuError if a single packing fails.
    """
    if detect_launcher() != "none":
        raise UserError(
            "dlemu pack was started by mpirun, srun or torchrun: start it once, without a launcher; it starts its own "
            "processes"
        )
    wanted_folder, words = take_word(overrides, "output.folder")
    runs_of = points(words)
    goes_on = len(runs_of) > 1
    planned = []
    for number, (point, one) in enumerate(
        zip(runs_of, check_each(runs_of, lambda point: read_words(point.words, config_dir)), strict=True), start=1
    ):
        name = f"point-{number:02}"
        if goes_on:
            one = replace(one, target=os.path.join(one.target, name))
        planned.append(Planned(what=one, name=name, label=named(point.settings) or "packing", settings=point.settings))
    workloads = [each.what.workload for each in planned if each.what.workload is not None]
    question = PackQuestion(overrides=tuple(without_secrets(words)), settings_digest=digest(workloads))
    runs = PackRuns(wanted_folder or new_folder("pack"), question, planned, on_event)
    runs.goes_on = goes_on
    runs.resume()
    if make is not None:
        for workload in {workload.dataset: workload for workload in workloads}.values():
            make(workload)
    for each in planned:
        owned.check_usable(each.what.target, "target")
    return runs.run_missing()


class PackRuns(RunList[PackSettings, PackPoint, PackAnswer]):
    """The list of packings: a single one raises its failure, a sweep (`goes_on`) records it and continues."""

    file, noun, runs_in, answer_type = PACK, "packing", "points", PackAnswer
    on_event: Callable[[PackEvent], None]

    def answer(self, *, complete: bool) -> PackAnswer:
        """Return the answer with the packings done so far."""
        target = "" if self.goes_on else self.planned[-1].what.target
        return PackAnswer(complete=complete, question=self.question, points=tuple(self.runs), target=target)

    def make_folder(self, planned: Planned[PackSettings]) -> str:
        """Create and return the folder of a packing."""
        self._taken = take_folder(self.folder, "output.folder")
        return super().make_folder(planned)

    def start(self, planned: Planned[PackSettings], folder: str) -> PackPoint:
        """Pack; a sweep removes the packed files afterwards."""
        settings, name = planned.what, os.path.basename(folder)
        if not self.goes_on:
            try:
                return PackPoint(settings={}, folder=name, figures=pack_here(settings, self.on_event))
            except BaseException:
                owned.remove_claimed(folder)
                self._taken.drop()
                raise
        target, sweep = settings.target, os.path.realpath(self.folder)
        above = owned.missing_folders(os.path.dirname(target))
        remove_point(target, sweep)  # files of an interrupted run of this point
        try:
            figures = pack_here(settings, self.on_event, sweep=sweep)
        finally:
            with contextlib.suppress(UserError):
                remove_point(target, sweep)
            owned.OwnFolder(target, above, marked=False).drop()
        if os.path.lexists(target):  # what was measured is measured
            note = f"{target}: the packed files of this point could not all be removed"
            figures = replace(figures, warnings=(*figures.warnings, note))
        return PackPoint(settings=dict(planned.settings), folder=name, figures=figures)

    def failed(self, planned: Planned[PackSettings], folder: str, error: DlemuError) -> PackPoint | None:
        """Return the record of a failed point of a sweep; None for a single packing."""
        if not self.goes_on:
            return None
        settings, name = dict(planned.settings), os.path.basename(folder)
        return PackPoint(settings=settings, folder=name, failure=str(error), exit_status=error.exit_status)


def read_pack(folder: str) -> PackAnswer:
    """Return the packing in a folder; raises UserError."""
    answer = read_answer(folder, PACK, PackAnswer)
    if answer is None:
        raise UserError(f"{folder} has no {PACK}")
    return answer
