"""The rehearsals of `dlemu mlperf run`: chooses the kind of rehearsal for a workload, and prints its outcome."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from dlemu.cli.frontends import allow
from dlemu.config import check_checkpoints, check_runnable, load
from dlemu.config.overrides import take_word
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.mlperf.check.judge import TREE, Checked
from dlemu.contrib.mlperf.lines import (
    Line,
    check_lines,
    checkpoint_lines,
    judged_lines,
    kv_lines,
    outcome_lines,
    place_lines,
)
from dlemu.contrib.mlperf.rehearsal import NOTE
from dlemu.contrib.mlperf.rehearsal.checkpoint_datasize import checkpoint_datasize
from dlemu.contrib.mlperf.rehearsal.datasize import datasize, host_memory_gib
from dlemu.contrib.mlperf.rehearsal.rehearse import Rehearsal, check_names
from dlemu.contrib.mlperf.rehearsal.rehearse_checkpoints import CheckpointRehearsal
from dlemu.contrib.mlperf.rehearsal.rehearse_kv import EDITION, KvRehearsal
from dlemu.contrib.mlperf.rehearsal.run_figures import RehearsalPlan
from dlemu.contrib.mlperf.rehearsal.submission import Submission
from dlemu.contrib.mlperf.rules.editions import EDITIONS
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.extend import UserError
from dlemu.metrics.verdict import EXIT_STATUSES
from dlemu.studies.prerequisites import check_launcher

AnyRehearsal = Rehearsal | CheckpointRehearsal | KvRehearsal


@dataclass(frozen=True, kw_only=True)
class Rehearser:
    """The options of `dlemu mlperf run`, which apply to each workload."""

    config_dir: str | None
    edition: str | None
    division: Division
    organisation: str
    system: str
    hosts: int
    memory_gib_per_host: float | None
    """None: the memory of this host."""
    make: bool
    accelerator_type: str

    def single(self, words: Sequence[str], folder: str) -> AnyRehearsal:
        """Return the rehearsal of one workload; raises UserError for wrong settings."""
        check_names(self.organisation, self.system)
        launcher, words = take_word(words, "launcher")
        check_launcher("mlperf run", launcher)
        workload = load(words, config_dir=self.config_dir)
        memory = host_memory_gib() if self.memory_gib_per_host is None else self.memory_gib_per_host
        if workload.section(KvSettings).option:
            if self.edition not in (None, EDITION):
                raise UserError(f"--edition {self.edition} has no kv_cache: wanted {EDITION}")
            return KvRehearsal(
                workload=workload,
                division=self.division,
                organisation=self.organisation,
                system=self.system,
                hosts=self.hosts,
                memory_gib_per_host=memory,
                words=tuple(words),
                folder=folder,
                launcher=launcher,
                config_dir=self.config_dir,
                report=_report,
            )
        if not workload.workflow.train and workload.workflow.checkpoint:
            check_checkpoints(workload)
            return CheckpointRehearsal(
                size=checkpoint_datasize(workload, edition=self.edition, hosts=self.hosts, memory_gib_per_host=memory),
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
        size = datasize(workload, edition=self.edition, hosts=self.hosts, memory_gib_per_host=memory)
        if self.make and not any(word.startswith(("dataset.num_files_train=", "scale=")) for word in words):
            words = [*words, *size.overrides]
            workload = load(words, config_dir=self.config_dir)
        plan = RehearsalPlan(
            edition=EDITIONS[size.edition],
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

    def allow_making(self, parts: Sequence[Sequence[str]], folder: str, *, yes: bool) -> None:
        """Prompt before a large dataset is made for any of the workloads; raises UserError for no, or no terminal."""
        from dlemu.jobs.training.enough import to_make

        for words in parts if self.make and not yes else ():
            rehearsal = self.single(words, folder)
            if isinstance(rehearsal, Rehearsal):
                making = to_make(rehearsal.plan.workload, rehearsal.plan.workload.ranks, given=True)
                allow(making.workload, making.folder, None, making.bytes, yes=yes)

    def several(self, parts: Sequence[Sequence[str]], folder: str) -> int:
        """Run the rehearsals of several workloads, print their outcomes, and return the exit status."""
        checked = Submission(
            folder=folder, parts=parts, make=self.single, run_part=lambda part: _print(_run(part)[0]), report=_report
        ).run()
        _print((*check_lines(checked), *place_lines(folder, os.path.join(folder, TREE), NOTE)))
        return 0 if checked.valid else 1


def run_single(rehearsal: AnyRehearsal) -> int:
    """Run a rehearsal, print its outcome, and return the exit status."""
    lines, checked, status = _run(rehearsal)
    folder = rehearsal.plan.folder if isinstance(rehearsal, Rehearsal) else rehearsal.folder
    _print((*lines, *judged_lines(checked), *place_lines(folder, os.path.join(folder, TREE), NOTE)))
    if rehearsal.resumes:
        click.echo(f"pages of the runs: dlemu report {shlex.quote(os.path.join(folder, 'runs'))}/*")
    return status


def _run(rehearsal: AnyRehearsal) -> tuple[Iterable[Line], Checked, int]:
    """Run a rehearsal; return the lines of its outcome, its check against the rules, and the exit status."""
    if isinstance(rehearsal, Rehearsal):
        trained = rehearsal.run()
        return outcome_lines(trained), trained.checked, EXIT_STATUSES[trained.judged]
    if isinstance(rehearsal, KvRehearsal):
        served = rehearsal.run()
        return kv_lines(served), served.checked, 0 if served.checked.valid else 1
    written = rehearsal.run()
    return checkpoint_lines(written), written, 0 if written.valid else 1


def _print(lines: Iterable[Line]) -> None:
    for line, style in lines:
        click.secho(line, **style)


def _report(line: str) -> None:
    click.echo(line, err=True)
