"""Rehearses a training result: its dataset, a warm-up run and the measured runs, and how they ended."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, pstdev
from typing import Literal

from dlemu.config import datagen_command
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.audit.run_settings import Printed, read_printed
from dlemu.contrib.mlperf.check.copy_rules import training_sums
from dlemu.contrib.mlperf.check.judge import Checked
from dlemu.contrib.mlperf.rehearsal import EDITION, NOTE
from dlemu.contrib.mlperf.rehearsal.datasize import Datasize
from dlemu.contrib.mlperf.rehearsal.edition_tree import (
    copy_into_tree,
    same_file_system,
    training_metadata,
    write_datagen,
    write_datasize,
)
from dlemu.contrib.mlperf.rehearsal.rehearse import Call, Done, Rehearsal
from dlemu.contrib.mlperf.rules.editions import MEASURED_RUNS
from dlemu.extend import DlemuError, format_base, inspect
from dlemu.extend import layout as dataset_layout
from dlemu.results.kinds import read_result
from dlemu.results.wording import scaled

WARM_UP = "warm-up"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one run."""

    printed: Printed
    """Its summary in DLIO's format, as the edition's tool would print it."""
    au_percent: float | None
    """AU as dlemu itself reports it, from the accelerators' timelines."""
    held_back: bool
    """Whether it fails, but would fail even without storage, so that nothing is known of the storage."""
    limited_by: str | None

    @property
    def passed(self) -> bool:
        """Whether DLIO's AU reaches the threshold."""
        return self.printed.verdict == "success"


@dataclass(kw_only=True)
class TrainingRehearsal(Rehearsal[Datasize]):
    """One rehearsal of a training workload."""

    command = "train"
    defaults = ("metric.verdict=au",)  # as the edition's tool judges
    measured: list[Figures] = field(default_factory=list)
    """Of the runs that have ended, without the warm-up."""

    @property
    def calls(self) -> Sequence[Call]:
        """A warm-up and the measured runs, each with another seed for its shuffles."""
        labels, first = (WARM_UP, *(f"run {number + 1}" for number in range(MEASURED_RUNS))), self.plan.workload.train
        return [
            Call(label, ("workflow.generate_data=false", f"train.seed={first.seed + number}"))
            for number, label in enumerate(labels)
        ]

    def prepare(self) -> None:
        """Inspect the dataset, write the phases before the runs, report the plan."""
        began_at = self.now()
        self._inspect()
        super().prepare()
        write_datasize(self.plan, self.size, began_at)
        write_datagen(self.plan, began_at)
        for line in self._opening_lines():
            self.report(line)

    def lay_out(self, call: Done, run: str, times: tuple[str, str]) -> None:
        """Copy the run into the tree, and sum up the measured runs that are there."""
        figures, plan = read_figures(run), self.plan
        printed, workload = figures.printed, plan.workload
        metadata = training_metadata(plan, "run", call.stamp, printed.num_files or 0)
        metadata["parameters"]["train"]["seed"] = int(call.settings[-1].partition("=")[2])
        metadata["num_processes"] = metadata["args"]["num_accelerators"] = printed.accelerators
        metadata["args"]["client_host_memory_in_gb"] = (printed.memory_gib or 0) / (printed.hosts or 1)
        metadata["args"]["num_client_hosts"] = printed.hosts
        runs = os.path.join(plan.result("training", workload.model.name), "run")
        copy_into_tree(plan, run, os.path.join(runs, call.stamp), metadata, times, workload.dataset.data_folder)
        call.figures = asdict(figures)
        self.report(_run_line(call, figures))
        if call.label != WARM_UP:
            self.measured.append(figures)
            sums = training_sums([each.printed for each in self.measured])
            self.write_sums(runs, model=workload.model.name, num_accelerators=printed.accelerators, **sums)

    def outcome(self, checked: Checked) -> Literal["pass", "fail", "no verdict"]:
        """Return `pass` if all runs passed and no rule is broken; `no verdict` if only the emulator was too slow."""
        if all(run.passed for run in self.measured) and checked.valid:
            return "pass"
        broken = {one.finding.rule for one in checked.findings if one.finding.severity == "error"}
        held_back = all(run.passed or run.held_back for run in self.measured)
        return "no verdict" if broken <= {"au.low"} and held_back else "fail"

    def _inspect(self) -> None:
        """Raise UserError unless the dataset exists, is complete and matches the settings."""
        workload = self.plan.workload
        inspect(workload.dataset, command_hint=lambda: datagen_command(workload), storage=workload.storage_spec)

    def _opening_lines(self) -> list[str]:
        plan, bound, workload = self.plan, self.size.bound, self.plan.workload
        files = workload.dataset.num_files_train
        kind = f"{workload.ranks} x {workload.accelerator}{scaled(None, workload.scale)}"
        enough = "" if files >= bound.files else ": TOO SMALL, the result will not be valid"
        lines = [
            f"rehearsal of MLPerf Storage v{EDITION} {plan.division.upper()}: {workload.model.name}, {kind}",
            NOTE,
            f"dataset: {files:,} files; the rules require {bound.files:,} or more ({bound.because}){enough}",
        ]
        if same_file_system(workload.dataset.data_folder, os.path.dirname(plan.tree)):
            lines.append("data and results share a file system, which the rules forbid: set output.folder")
        return [*lines, f"results: {plan.folder}"]


def read_figures(folder: str) -> Figures:
    """Return the figures of a finished run; raises UserError for a damaged folder."""
    summary, printed = read_result(folder).summary, read_printed(os.path.join(folder, "dlio"), [])
    ceiling, threshold = summary.metrics.ceiling_au_percent, summary.metrics.au_threshold_percent
    return Figures(
        printed=printed,
        au_percent=summary.au.mean if summary.au else None,
        held_back=printed.verdict != "success" and ceiling is not None and ceiling < threshold,
        limited_by=summary.limited_by.what if summary.limited_by else None,
    )


def _run_line(call: Done, figures: Figures) -> str:
    verdict, printed = "passes" if figures.passed else "does not pass", figures.printed
    own = "" if figures.au_percent is None else f"; dlemu's own AU {figures.au_percent:.2f} %"
    return (
        f"{call.label} {verdict}: AU {printed.au_percent or 0:.2f} %, {printed.samples_per_second or 0:.1f} samples/s"
        f" by DLIO's formulas{own}"
    )


def outcome_lines(rehearsal: TrainingRehearsal) -> list[str]:
    """Return the outcome of the measured runs, the first line whether they pass."""
    runs, workload = rehearsal.measured, rehearsal.plan.workload
    au = [run.printed.au_percent or 0.0 for run in runs]
    rate = [run.printed.samples_per_second or 0.0 for run in runs]
    own = [run.au_percent for run in runs if run.au_percent is not None]
    limits = ", ".join(sorted({run.limited_by for run in runs if run.limited_by})) or "not known"
    mean = f"dlemu's own AU: {fmean(own):.1f} % +- {pstdev(own):.1f}; " if len(own) == len(runs) else ""
    lines = [
        f"{sum(run.passed for run in runs)} of {len(runs)} runs pass: AU {fmean(au):.1f} % +- {pstdev(au):.1f},"
        f" {fmean(rate):,.0f} samples/s (mean of {len(runs)}, CoV {100 * pstdev(rate) / (fmean(rate) or 1):.1f} %),"
        " by DLIO's formulas",
        f"{mean}limited by: {limits}",
    ]
    cores = library_cores(workload)
    if cores is not None:
        lines.append(
            f"this AU is the storage's, read with little CPU: DLIO's own loader wants {cores:.2f} cores an accelerator,"
            f" {cores * workload.ranks:.2f} in all, only to read and unpack with its library"
        )
    return lines


_MEASURED_SECONDS = 2.0


def library_cores(workload: Workload) -> float | None:
    """Return the cores that one accelerator at full speed keeps busy with its library's reads, measured on this host.

    None where the dataset is on no local file system, or the library is not installed. DLIO's loader needs at least
    this: it also shuffles, resizes, collates and copies between processes.
    """
    seconds = mean_seconds(workload.train.computation_time)
    if not seconds or workload.storage_spec.type != "posix":
        return None
    train, _ = dataset_layout.layouts(workload.dataset)
    reader, began, used, read = (
        format_base.format_named(workload.dataset.format),
        time.monotonic(),
        time.process_time(),
        0,
    )
    try:
        while read < train.num_files and time.monotonic() - began < _MEASURED_SECONDS:
            sample = reader.load_path(train.path(read), 0, train.num_samples_per_file)
            if sample.decode is not None:
                sample.decode()
            read += 1
    except (DlemuError, OSError):
        return None
    return (time.process_time() - used) / read * workload.reader.batch_size / seconds
