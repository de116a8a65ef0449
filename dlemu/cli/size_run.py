"""From the question to the answer on the terminal and in size.json."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import psutil
from rich.console import Console

from datagen.errors import UserError
from datagen.inspection import inspect
from dlemu.cli import complain
from dlemu.cli.frontends import TerminalFrontend, show_dataset
from dlemu.cli.options import again, check_launcher, report_result, take_word
from dlemu.comm import Interrupted, interrupt_once
from dlemu.config import check_runnable, datagen_command, load
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.emulator.environment import describe_folder
from dlemu.emulator.evict import evict
from dlemu.emulator.job import Job, make_job
from dlemu.metrics.demand import demand
from dlemu.report.size_terminal import Teller, print_answer
from dlemu.run.run_folder import new_folder
from dlemu.sizing.answer import Known, Question
from dlemu.sizing.cache import Treatment, treatment
from dlemu.sizing.probe import read_mb_per_second
from dlemu.sizing.room import Room, measure_room
from dlemu.sizing.runner import TrainRunner, TrialPlan
from dlemu.sizing.search import Limits
from dlemu.sizing.search_run import Watcher, search
from dlemu.sizing.store import save_answer, saved_trials

STRETCH_SECONDS = 1.0
"""Least length of a stretch: long beside the slices in which drives, caches and throttles do their work."""
STRETCH_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line."""

    overrides: tuple[str, ...]
    config_dir: str | None
    at_least: int | None
    most: int
    confidence: float
    trial_seconds: float
    make: bool
    cached: bool


def find_size(asked: Asked) -> int:
    """Find the answer, show and save it, and return the exit status; raises UserError, DlemuError."""
    launcher, words = take_word(asked.overrides, "launcher")
    check_launcher("size", launcher)
    workload = load(words, config_dir=asked.config_dir)
    _check(words, workload)
    if asked.make or workload.workflow.generate_data:
        _make(words, asked.config_dir)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once())
    folder = workload.output.folder or new_folder(workload.model.name, "size-")
    try:
        return _Sizing(asked, words, launcher, workload, folder).run()
    except Interrupted as stop:
        complain(f"interrupted by {signal.Signals(stop.signal_number).name}; finished trials are kept: {again(folder)}")
        return stop.exit_status


def _check(words: Sequence[str], workload: Workload) -> None:
    check_runnable(workload)
    if any(word.lstrip("+").startswith("ranks=") for word in words):
        raise UserError("ranks is what `dlemu size` finds: leave it out, or say --most N to try no more than N")
    if mean_seconds(workload.train.computation_time) <= 0:
        raise UserError("train.computation_time is 0: nothing computes, so any count passes; choose an accelerator")


def _make(words: Sequence[str], config_dir: str | None) -> None:
    words = [*words, f"ranks={len(os.sched_getaffinity(0))}"]
    status = show_dataset(TerminalFrontend(words, config_dir), fsync=True)
    if status:
        raise SystemExit(status)


class _Sizing:
    """One search, from its checks to its answer."""

    def __init__(self, asked: Asked, words: list[str], launcher: str, workload: Workload, folder: str) -> None:
        self._asked, self._launcher, self._folder = asked, launcher, folder
        self._words = [word for word in words if not word.startswith("output.folder=")]
        self._job = _job(workload, folder)
        self._step_seconds = mean_seconds(workload.train.computation_time)
        self._stretch_seconds = max(STRETCH_SECONDS, STRETCH_STEPS * self._step_seconds)
        self._teller = Teller(Console(stderr=True))

    def run(self) -> int:
        how, room = self._treatment(), self._room()
        trials = saved_trials(self._folder, self._question())
        self._teller.begin(self._folder, how, self._job.found.total_bytes, room, len(trials))
        if how == "evicted":
            evict(self._job, 0, 1, write_first=True)
        known = self._known(room, self._probe())
        self._teller.probed(known)
        answer = search(
            self._question(),
            known,
            Limits(first=self._first(known), most=known.most),
            TrainRunner(self._plan(how)),
            trials,
            Watcher(before=self._teller.before, after=self._after),
        )
        return self._finish(answer)

    def _after(self, trial: Any, answer: dict[str, Any]) -> None:
        save_answer(self._folder, answer)
        self._teller.after(trial, answer)

    def _finish(self, answer: dict[str, Any]) -> int:
        wanted = self._asked.at_least
        answer["at_least"] = wanted
        answer["passed"] = answer["max_accelerators"] >= (wanted or 1)
        save_answer(self._folder, answer)
        print_answer(answer, self._folder, Console())
        report_result(self._job.workload.output.report, self._folder)
        return 0 if answer["passed"] else 1

    def _question(self) -> Question:
        workload = self._job.workload
        return Question(
            workload=workload.model.name,
            accelerator=workload.accelerator,
            scale=workload.scale,
            overrides=tuple(self._words),
            launcher=self._launcher,
            threshold_percent=100 * workload.metric.au,
            confidence_percent=100 * self._asked.confidence,
            trial_seconds=self._asked.trial_seconds,
            cached=self._asked.cached,
        )

    def _treatment(self) -> Treatment:
        workload = self._job.workload
        place = describe_folder(workload.dataset.data_folder)
        return treatment(
            odirect=workload.reader.odirect,
            cached=self._asked.cached,
            total_bytes=self._job.found.total_bytes,
            memory_bytes=psutil.virtual_memory().total,
            file_system=place.file_system,
        )

    def _room(self) -> Room:
        workload = self._job.workload
        return measure_room(
            samples=self._job.found.train.num_samples,
            samples_per_file=self._job.found.train.num_samples_per_file,
            batch_size=workload.reader.batch_size,
            epochs=workload.train.epochs,
            ahead=self._ahead(),
            stretch_steps=ceil(self._stretch_seconds / self._step_seconds),
        )

    def _ahead(self) -> int:
        job = self._job
        return job.batches_ahead + (not job.workload.train.synchronous)

    def _probe(self) -> float:
        fetch = self._job.loader_spec(0).phases["train"].fetch
        return read_mb_per_second(replace(fetch, verify=False, decode="none", engine="fast"))

    def _known(self, room: Room, probe: float) -> Known:
        workload, asked = self._job.workload, self._asked
        one = demand(workload.model.name, workload).mb_per_second
        steps = sum(epoch.steps for epoch in self._job.schedule)
        capped = asked.most <= room.most
        return Known(
            hosts=(platform.node(),),
            probe_mb_per_second=probe,
            mb_per_accelerator=one or 0.0,
            most=asked.most if capped else room.most,
            most_why=f"--most {asked.most}" if capped else room.why,
            naive_seconds_per_trial=steps * self._step_seconds,
        )

    def _first(self, known: Known) -> int:
        share = self._job.workload.metric.au
        return max(1, int(known.probe_mb_per_second / (share * known.mb_per_accelerator)))

    def _plan(self, how: Treatment) -> TrialPlan:
        workload = self._job.workload
        planned = workload.train.total_training_steps
        most = ceil(self._asked.trial_seconds / self._step_seconds) + 1 + self._ahead()
        return TrialPlan(
            words=(
                *self._words,
                "workflow.generate_data=false",
                "workflow.checkpoint=false",  # a trial measures training's reads; au counts nothing else
                "workflow.evaluation=false",
                "output.report=false",
                *(["reader.evict_page_cache=epochs"] if how == "evicted" else []),
            ),
            options=("--config-dir", self._asked.config_dir) if self._asked.config_dir else (),
            launcher=self._launcher,
            folder=self._folder,
            threshold_percent=100 * workload.metric.au,
            confidence=self._asked.confidence,
            stretch_seconds=self._stretch_seconds,
            batches_ahead=self._ahead(),
            total_steps=min(most, planned) if planned > 0 else most,
            cached=self._asked.cached,
            seed=workload.train.seed,
        )


def _job(workload: Workload, folder: str) -> Job:
    """Return the job of one accelerator: what all counts have in common is read off it."""
    found = inspect(workload.dataset, command_hint=f"{datagen_command(workload)} (or say --make here)")
    return make_job(workload, 1, found, folder=folder, started_at="")
