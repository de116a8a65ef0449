"""The rehearsals of `dlemu mlperf run`: chooses the kind of rehearsal for a workload, and prints its outcome."""

from __future__ import annotations

import os
import shlex

import click
from rich.console import Console

from dlemu.config import check_checkpoints, check_runnable
from dlemu.contrib.mlperf.check.judge import TREE
from dlemu.contrib.mlperf.lines import judged_lines, result_lines
from dlemu.contrib.mlperf.rehearsal import EDITION, NOTE
from dlemu.contrib.mlperf.rehearsal.datasize import checkpoint_datasize, datasize, host_memory_gib
from dlemu.contrib.mlperf.rehearsal.edition_tree import RehearsalPlan
from dlemu.contrib.mlperf.rehearsal.rehearse import CheckpointRehearsal, TrainingRehearsal
from dlemu.extend import UserError, check_launcher
from dlemu.report.table import print_lines

Rehearsing = TrainingRehearsal | CheckpointRehearsal


def rehearsal_of(
    plan: RehearsalPlan, *, hosts: int, memory_gib_per_host: float | None, accelerator_type: str
) -> Rehearsing:
    """Return the rehearsal of a plan's workload, by default with this host's memory; raises UserError."""
    check_launcher("mlperf run", plan.launcher)
    workload = plan.workload
    memory = host_memory_gib() if memory_gib_per_host is None else memory_gib_per_host
    if not (workload.workflow.train or workload.workflow.checkpoint):
        raise UserError(
            f"workload={workload.model.name} has no rehearsal: wanted one of training or of checkpoints; `dlemu "
            "kvcache workload=mlperf_kv kv.option=1` runs an option of kv_cache"
        )
    if not workload.workflow.train:
        check_checkpoints(workload)
        checkpoints = checkpoint_datasize(workload, edition=EDITION, hosts=hosts, memory_gib_per_host=memory)
        return CheckpointRehearsal(plan=plan, size=checkpoints, report=_report, accelerator=accelerator_type)
    check_runnable(workload)
    size = datasize(workload, edition=EDITION, hosts=hosts, memory_gib_per_host=memory)
    return TrainingRehearsal(plan=plan, size=size, report=_report)


def run(rehearsal: Rehearsing) -> int:
    """Run a rehearsal, print its outcome and the rules that it breaks, and return the exit status."""
    folder, checked, console = rehearsal.plan.folder, rehearsal.run(), Console()
    status, lines = rehearsal.end(checked)
    print_lines(lines or result_lines(checked), console)
    print_lines(judged_lines(checked), console)
    print_lines([NOTE, f"tree: {os.path.join(folder, TREE)}; to check it again: dlemu mlperf check {folder}"], console)
    print_lines([f"pages of the runs: dlemu report {shlex.quote(os.path.join(folder, 'runs'))}/*"], console)
    return status


def _report(line: str) -> None:
    click.echo(line, err=True)
