"""Rehearses a checkpointing result: calls that write and read checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from dlemu.contrib.mlperf.check.checkpoint_rules import figures_of
from dlemu.contrib.mlperf.check.judge import check_folder
from dlemu.contrib.mlperf.check.tree_rules import CONFIG_FOLDER
from dlemu.contrib.mlperf.rehearsal import EDITION, NOTE
from dlemu.contrib.mlperf.rehearsal.checkpoint_datasize import CheckpointDatasize
from dlemu.contrib.mlperf.rehearsal.edition_tree import call_metadata, copy_into_tree
from dlemu.contrib.mlperf.rehearsal.rehearse import Call, Done, Rehearsal
from dlemu.contrib.mlperf.rules.checkpoints import MEMORY_FACTOR


@dataclass(kw_only=True)
class CheckpointRehearsal(Rehearsal[CheckpointDatasize]):
    """One rehearsal of a checkpointing result."""

    command = "checkpoint"
    accelerator: str = "b200"
    """Accelerator whose memory must hold the checkpoint, by the edition's table; nothing else depends on it."""

    @property
    def calls(self) -> Sequence[Call]:
        """Two calls if the hosts' memory could serve the reads, so that page caches can be dropped in between."""
        if self.size.memory_factor > MEMORY_FACTOR:
            return (Call("both", ()),)
        write, read = ("checkpoint.num_checkpoints_read=0",), ("checkpoint.num_checkpoints_write=0",)
        return Call("write", write), Call("read", read)

    def prepare(self) -> None:
        """Report the plan, and write what comes before the first call."""
        super().prepare()
        what = f"{self.size.model}, {self.plan.workload.ranks} processes"
        self.report(f"rehearsal of MLPerf Storage v{EDITION} {self.plan.division.upper()}: {what}")
        self.report(NOTE)
        names = " and ".join(call.label for call in self.calls)
        self.report(f"calls: {names}; {self.size.room_gib:,.0f} GiB in ten checkpoints; results: {self.plan.folder}")

    def lay_out(self, call: Done, run: str, times: tuple[str, str]) -> None:
        """Copy the call into the tree, and sum up the calls that are there."""
        folder = self.plan.workload.checkpoint.checkpoint_folder
        result = self.plan.result("checkpointing", self.size.model)
        with open(os.path.join(run, "dlio", CONFIG_FOLDER, "config.yaml")) as lines:
            settings = yaml.safe_load(lines)["workload"]
        args = {"checkpoint_folder": folder, "num_processes": self.plan.workload.ranks}
        metadata = call_metadata(
            self.plan, "checkpointing", "run", call.stamp, self.size.model, self.accelerator, settings, args
        )
        copy_into_tree(self.plan, run, os.path.join(result, call.stamp), metadata, times, folder)
        for checked in check_folder(self.plan.tree).checkpoints:
            call.figures = {f"{kind}_gib_per_second": rate for kind, rate in figures_of(checked).items()}
        self.write_sums(result, model=self.size.model, num_processes=self.plan.workload.ranks, **call.figures)
