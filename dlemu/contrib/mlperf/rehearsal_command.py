"""The rehearsals of `dlemu mlperf run`: chooses the kind of rehearsal for a workload, and prints its outcome."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import click

from dlemu.cli.frontends import allow
from dlemu.config import check_checkpoints, check_runnable, load
from dlemu.config.overrides import take_word
from dlemu.contrib.mlperf.check.judge import TREE
from dlemu.contrib.mlperf.lines import judged_lines, outcome_lines, place_lines, result_lines
from dlemu.contrib.mlperf.rehearsal import EDITION, NOTE
from dlemu.contrib.mlperf.rehearsal.checkpoint_datasize import checkpoint_datasize
from dlemu.contrib.mlperf.rehearsal.datasize import datasize, host_memory_gib
from dlemu.contrib.mlperf.rehearsal.rehearse import Rehearsal, check_names
from dlemu.contrib.mlperf.rehearsal.rehearse_checkpoints import CheckpointRehearsal
from dlemu.contrib.mlperf.rehearsal.run_figures import RehearsalPlan
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.extend import UserError
from dlemu.metrics.verdict import EXIT_STATUSES
from dlemu.studies.prerequisites import check_launcher


@dataclass(frozen=True, kw_only=True)
class Rehearser:
    """The options of `dlemu mlperf run`."""

    config_dir: str | None
    division: Division
    organisation: str
    system: str
    hosts: int
    memory_gib_per_host: float | None
    """None: the memory of this host."""
    make: bool
    accelerator_type: str

    def rehearsal(self, words: Sequence[str], folder: str) -> Rehearsal | CheckpointRehearsal:
        """Return the rehearsal of a workload; raises UserError for wrong settings."""
        check_names(self.organisation, self.system)
        launcher, words = take_word(words, "launcher")
        check_launcher("mlperf run", launcher)
        workload = load(words, config_dir=self.config_dir)
        memory = host_memory_gib() if self.memory_gib_per_host is None else self.memory_gib_per_host
        if not (workload.workflow.train or workload.workflow.checkpoint):
            raise UserError(
                f"workload={workload.model.name} has no rehearsal: wanted one of training or of checkpoints; `dlemu "
                "kvcache workload=mlperf_kv kv.option=1` runs an option of kv_cache"
            )
        if not workload.workflow.train:
            check_checkpoints(workload)
            return CheckpointRehearsal(
                size=checkpoint_datasize(workload, edition=EDITION, hosts=self.hosts, memory_gib_per_host=memory),
                division=self.division,
                organisation=self.organisation,
                system=self.system,
                words=tuple(words),
                checkpoint_folder=workload.checkpoint.checkpoint_folder,
                ranks=workload.ranks,
                folder=folder,
                launcher=launcher,
                config_dir=self.config_dir,
                report=_report,
                accelerator=self.accelerator_type,
            )
        check_runnable(workload)
        size = datasize(workload, edition=EDITION, hosts=self.hosts, memory_gib_per_host=memory)
        if self.make and not any(word.startswith(("dataset.num_files_train=", "scale=")) for word in words):
            words = [*words, *size.overrides]
            workload = load(words, config_dir=self.config_dir)
        plan = RehearsalPlan(
            division=self.division,
            organisation=self.organisation,
            system=self.system,
            workload=workload,
            words=tuple(words),
            folder=folder,
        )
        return Rehearsal(
            plan=plan, size=size, launcher=launcher, config_dir=self.config_dir, make=self.make, report=_report
        )

    def allow_making(self, rehearsal: Rehearsal | CheckpointRehearsal, *, yes: bool) -> None:
        """Prompt before a large dataset is made; raises UserError for no, or no terminal."""
        from dlemu.jobs.training.enough import to_make

        if self.make and not yes and isinstance(rehearsal, Rehearsal):
            making = to_make(rehearsal.plan.workload, rehearsal.plan.workload.ranks, given=True)
            allow(making.workload, making.folder, None, making.bytes, yes=yes)


def run(rehearsal: Rehearsal | CheckpointRehearsal) -> int:
    """Run a rehearsal, print its outcome and the rules that it breaks, and return the exit status."""
    if isinstance(rehearsal, Rehearsal):
        folder, trained = rehearsal.plan.folder, rehearsal.run()
        lines, checked, status = outcome_lines(trained), trained.checked, EXIT_STATUSES[trained.judged]
    else:
        folder, checked = rehearsal.folder, rehearsal.run()
        lines, status = result_lines(checked), 0 if checked.valid else 1
    for line, style in (*lines, *judged_lines(checked), *place_lines(folder, os.path.join(folder, TREE), NOTE)):
        click.secho(line, **style)
    if isinstance(rehearsal, Rehearsal):
        click.echo(f"pages of the runs: dlemu report {shlex.quote(os.path.join(folder, 'runs'))}/*")
    return status


def _report(line: str) -> None:
    click.echo(line, err=True)
