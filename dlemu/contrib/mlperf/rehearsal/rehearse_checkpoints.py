"""Rehearses a checkpointing result: calls that write and read checkpoints, the edition's tree, and a check of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import yaml

from dlemu.contrib.mlperf.check.checkpoint_rules import figures_of
from dlemu.contrib.mlperf.check.judge import REHEARSAL, Checked, check_folder
from dlemu.contrib.mlperf.check.tree_rules import CONFIG_FOLDER, RESULTS
from dlemu.contrib.mlperf.rehearsal import EDITION, NOTE
from dlemu.contrib.mlperf.rehearsal.attempts import free_stamp
from dlemu.contrib.mlperf.rehearsal.checkpoint_datasize import CheckpointDatasize
from dlemu.contrib.mlperf.rehearsal.edition_tree import (
    call_metadata,
    copy_into_tree,
    write_json,
    write_readme,
    write_system,
)
from dlemu.contrib.mlperf.rehearsal.run_figures import RehearsalPlan
from dlemu.contrib.mlperf.rules.checkpoints import MEMORY_FACTOR
from dlemu.extend import UserError, fresh_folder


@dataclass(frozen=True, kw_only=True)
class CheckpointRehearsal:
    """One rehearsal of a checkpointing result."""

    plan: RehearsalPlan
    size: CheckpointDatasize
    report: Callable[[str], None]
    accelerator: str = "b200"
    """Accelerator whose memory must hold the checkpoint, by the edition's table; nothing else depends on it."""
    now: Callable[[], datetime] = datetime.now
    """Local time, by which the calls are named."""

    @property
    def calls(self) -> dict[str, list[str]]:
        """Name of each call -> its own overrides.

        Two calls if the hosts' memory could serve the reads, so that page caches can be dropped in between.
        """
        if self.size.memory_factor > MEMORY_FACTOR:
            return {"both": []}
        return {"write": ["checkpoint.num_checkpoints_read=0"], "read": ["checkpoint.num_checkpoints_write=0"]}

    @property
    def result(self) -> str:
        """The folder that holds the calls' folders."""
        return os.path.join(self.plan.submission, "results", self.plan.system, "checkpointing", self.size.model)

    def run(self) -> Checked:
        """Do all calls, write the tree and check it.

        The time between the two calls is limited, so an interrupted rehearsal can't be continued.

        Raises:
            UserError: settings are wrong, or the folder holds a rehearsal; found before the first call.
            DlemuError, Interrupted: a call failed, or a signal stopped it.
        """
        if os.path.exists(os.path.join(self.plan.folder, REHEARSAL)):
            raise UserError(f"{self.plan.folder} holds a rehearsal already: set output.folder to a new folder")
        self._begin()
        done: list[dict[str, str]] = []
        self._save(done, complete=False)
        write_system(self.plan.submission, self.plan.system, self.size.hosts, self.size.memory_gib_per_host)
        for name, words in self.calls.items():
            done.append(self._call(name, words, done))
            self._save(done, complete=False)
        self._sums(done)
        self._save(done, complete=True)
        return check_folder(self.plan.folder)

    def _begin(self) -> None:
        names = " and ".join(self.calls)
        what = f"{self.size.model}, {self.plan.workload.ranks} processes"
        self.report(f"rehearsal of MLPerf Storage v{EDITION} {self.plan.division.upper()}: {what}")
        self.report(NOTE)
        self.report(f"calls: {names}; {self.size.room_gib:,.0f} GiB in ten checkpoints; results: {self.plan.folder}")
        write_readme(self.plan)

    def _call(self, name: str, own_words: list[str], done: list[dict[str, str]]) -> dict[str, str]:
        stamp = free_stamp((earlier["stamp"] for earlier in done), self.now)
        run = fresh_folder(os.path.join(self.plan.folder, "runs"), f"{stamp}-{name}")
        self.report(f"{name} ...")
        # A report page takes seconds, and the time between two calls is limited.
        words = [*self.plan.words, *own_words, "output.report=false"]
        begun = self.now()
        self.plan.run(words, run, "checkpoint")
        self._write_call(run, stamp, begun, self.now())
        return {"label": name, "stamp": stamp, "folder": os.path.relpath(run, self.plan.folder)}

    def _write_call(self, run: str, stamp: str, begun: datetime, ended: datetime) -> None:
        workload = self.plan.workload
        folder = workload.checkpoint.checkpoint_folder
        with open(os.path.join(run, "dlio", CONFIG_FOLDER, "config.yaml")) as lines:
            settings = yaml.safe_load(lines)["workload"]
        args = {"checkpoint_folder": folder, "num_processes": workload.ranks}
        metadata = call_metadata(
            self.plan, "checkpointing", "run", stamp, self.size.model, self.accelerator, settings, args
        )
        times = (begun.isoformat(), ended.isoformat())
        copy_into_tree(self.plan, run, os.path.join(self.result, stamp), metadata, times, folder)

    def _sums(self, done: list[dict[str, str]]) -> None:
        figures: dict[str, float] = {}
        for result in check_folder(self.plan.tree).checkpoints:
            figures |= {f"{kind}_gib_per_second": rate for kind, rate in figures_of(result).items()}
        runs = [{"run_datetime": call["stamp"], "label": call["label"]} for call in done]
        sums = {"rehearsal": NOTE, "model": self.size.model, "num_processes": self.plan.workload.ranks, "runs": runs}
        write_json(self.result, RESULTS, sums | figures)

    def _save(self, done: list[dict[str, str]], *, complete: bool) -> None:
        record = {
            "schema_version": 1,
            "rehearsal": NOTE,
            "complete": complete,
            "edition": EDITION,
            "division": self.plan.division,
            "checkpointing": self.size.model,
            "calls": done,
        }
        write_json(self.plan.folder, REHEARSAL, record)
