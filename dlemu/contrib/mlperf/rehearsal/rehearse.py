"""Rehearses a result: all its runs one after another, each laid out in the edition's tree; then checks that tree."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from statistics import fmean, pstdev
from typing import Any

from dlemu.config import check_runnable, datagen_command
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.audit.papers import STAMP_FORMAT
from dlemu.contrib.mlperf.audit.run_settings import Printed, read_printed
from dlemu.contrib.mlperf.check.copy_rules import training_sums
from dlemu.contrib.mlperf.check.judge import Checked, check_folder
from dlemu.contrib.mlperf.check.submission_tree import REHEARSAL
from dlemu.contrib.mlperf.check.tree_rules import RESULTS
from dlemu.contrib.mlperf.rehearsal import DIVISION, EDITION, NOTE, edition_tree
from dlemu.contrib.mlperf.rehearsal.datasize import Datasize, datasize
from dlemu.contrib.mlperf.rehearsal.edition_tree import RehearsalPlan, copy_into_tree, same_file_system, write_json
from dlemu.contrib.mlperf.rules.editions import MEASURED_RUNS
from dlemu.extend import DlemuError, UserError, check_launcher, format_base, inspect, owned, write_text
from dlemu.extend import layout as dataset_layout
from dlemu.results.kinds import read_result
from dlemu.results.wording import scaled

WARM_UP = "warm-up"
_MEASURED_SECONDS = 2.0


@dataclass(kw_only=True)
class Run:
    """One run of the sequence."""

    label: str
    seed: int
    stamp: str = ""
    """When it began: YYYYMMDD_HHMMSS; empty before."""
    folder: str = ""
    """Its result folder, relative to the rehearsal's."""
    failure: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Figures:
    printed: Printed
    """The run's summary in DLIO's format, as the edition's tool would print it."""
    au_percent: float | None
    """AU as dlemu itself reports it, from the accelerators' timelines."""
    held_back: bool
    """Whether the run fails, but would fail even without storage, so that nothing is known of the storage."""
    limited_by: str | None

    @property
    def passed(self) -> bool:
        return self.printed.verdict == "success"


@dataclass(kw_only=True)
class Rehearsal:
    """One rehearsal. The time between its runs is limited, so an interrupted one can't be continued."""

    plan: RehearsalPlan
    size: Datasize
    """What the rules require of its data."""
    report: Callable[[str], None]
    """Shows a line of progress."""
    now: Callable[[], datetime] = datetime.now
    """Local time, by which the runs are named."""
    begun: list[Run] = field(default_factory=list)
    measured: list[Figures] = field(default_factory=list)
    """Of the runs that have ended, without the warm-up."""

    def run(self) -> Checked:
        """Do a warm-up and the measured runs, each with another seed for its shuffles; write the tree and check it.

        Raises:
            UserError: settings are wrong, or the folder holds a rehearsal; found before the first run.
            DlemuError, Interrupted: a run failed, or a signal stopped it.
        """
        if os.path.exists(os.path.join(self.plan.folder, REHEARSAL)):
            raise UserError(f"{self.plan.folder} holds a rehearsal already: set output.folder to a new folder")
        self._prepare()
        self._save(complete=False)
        labels = [WARM_UP, *(f"run {number + 1}" for number in range(MEASURED_RUNS))]
        for seed, label in enumerate(labels, self.plan.workload.train.seed):
            self._do(Run(label=label, seed=seed))
        self._save(complete=True)
        return check_folder(self.plan.folder)

    def _do(self, run: Run) -> None:
        stamps = [begun.stamp for begun in self.begun]
        while (stamp := self.now().strftime(STAMP_FORMAT)) in stamps:
            time.sleep(0.1)
        folder = owned.fresh_folder(os.path.join(self.plan.folder, "runs"), f"{stamp}-{run.label.replace(' ', '-')}")
        run.stamp, run.folder = stamp, os.path.relpath(folder, self.plan.folder)
        self.begun.append(run)
        self.report(f"{run.label} ...")
        start = self.now()
        try:
            self.plan.run(run.seed, folder)
        except BaseException as error:
            run.failure = str(error) or "interrupted"
            self._save(complete=False)
            raise
        self._lay_out(run, folder, (start.isoformat(), self.now().isoformat()))
        self._save(complete=False)

    def _save(self, *, complete: bool) -> None:
        record = {"rehearsal": NOTE, "complete": complete, "edition": EDITION, "division": DIVISION}
        write_json(self.plan.folder, REHEARSAL, {**record, "calls": list(map(asdict, self.begun))})

    def _prepare(self) -> None:
        """Inspect the dataset, write the phases before the runs, report the plan; raises UserError without it."""
        began_at, plan, bound, workload = self.now(), self.plan, self.size.bound, self.plan.workload
        inspect(workload.dataset, command_hint=lambda: datagen_command(workload), storage=workload.storage_spec)
        owned.take_folder(plan.folder, "output.folder")
        write_text(plan.tree, "README.txt", f"{NOTE}\n")
        edition_tree.write_system(plan, self.size.hosts, self.size.memory_gib_per_host)
        edition_tree.write_datasize(plan, self.size, began_at)
        edition_tree.write_datagen(plan, began_at)
        files, kind = workload.dataset.num_files_train, f"{workload.ranks} x {workload.accelerator}"
        enough = "" if files >= bound.files else ": TOO SMALL, the result will not be valid"
        what = f"{workload.model.name}, {kind}{scaled(None, workload.scale)}"
        self.report(f"rehearsal of MLPerf Storage v{EDITION} {DIVISION.upper()}: {what}")
        self.report(NOTE)
        self.report(f"dataset: {files:,} files; the rules require {bound.files:,} or more ({bound.because}){enough}")
        if same_file_system(workload.dataset.data_folder, os.path.dirname(plan.tree)):
            self.report("data and results share a file system, which the rules forbid: set output.folder")
        self.report(f"results: {plan.folder}")

    def _lay_out(self, run: Run, folder: str, times: tuple[str, str]) -> None:
        """Copy a finished run into the tree, and sum up the measured ones there; `times` are its start and end."""
        figures, plan = read_figures(folder), self.plan
        printed = figures.printed
        metadata = edition_tree.call_metadata(plan, "run", run.stamp, printed.num_files or 0)
        metadata["parameters"]["train"]["seed"] = run.seed
        metadata["num_processes"] = metadata["args"]["num_accelerators"] = printed.accelerators
        metadata["args"]["client_host_memory_in_gb"] = (printed.memory_gib or 0) / (printed.hosts or 1)
        metadata["args"]["num_client_hosts"] = printed.hosts
        runs = os.path.join(plan.result, "run")
        copy_into_tree(plan, folder, os.path.join(runs, run.stamp), metadata, times)
        run.figures = asdict(figures)
        verdict = "passes" if figures.passed else "does not pass"
        au, rate = printed.au_percent or 0, printed.samples_per_second or 0
        line = f"{run.label} {verdict}: AU {au:.2f} %, {rate:.1f} samples/s by DLIO's formulas"
        if figures.au_percent is not None:
            line += f"; dlemu's own AU {figures.au_percent:.2f} %"
        self.report(line)
        if run.label != WARM_UP:
            self.measured.append(figures)
            job = {"model": plan.workload.model.name, "num_accelerators": printed.accelerators}
            listed = [{"run_datetime": begun.stamp, "label": begun.label} for begun in self.begun]
            sums = training_sums([each.printed for each in self.measured])
            write_json(runs, RESULTS, {"rehearsal": NOTE, "runs": listed, **job, **sums})

    def end(self, checked: Checked) -> tuple[int, list[str]]:
        """Return the exit status: 4, no verdict, if only the emulator was too slow; and how the measured runs ended."""
        lines = list(self._outcome_lines())
        if all(run.passed for run in self.measured) and checked.valid:
            return 0, lines
        broken = {one.rule for one in checked.findings if one.severity == "error"}
        held_back = all(run.passed or run.held_back for run in self.measured)
        return (4 if broken <= {"au.low"} and held_back else 1), lines

    def _outcome_lines(self) -> Iterator[str]:
        runs, workload = self.measured, self.plan.workload
        au = [run.printed.au_percent or 0.0 for run in runs]
        rate = [run.printed.samples_per_second or 0.0 for run in runs]
        own_au = [run.au_percent for run in runs if run.au_percent is not None]
        limits = ", ".join(sorted({run.limited_by for run in runs if run.limited_by})) or "not known"
        mean = f"dlemu's own AU: {fmean(own_au):.1f} % +- {pstdev(own_au):.1f}; " if len(own_au) == len(runs) else ""
        yield (
            f"{sum(run.passed for run in runs)} of {len(runs)} runs pass: AU {fmean(au):.1f} % +- {pstdev(au):.1f},"
            f" {fmean(rate):,.0f} samples/s (mean of {len(runs)}, CoV {100 * pstdev(rate) / (fmean(rate) or 1):.1f} %),"
            " by DLIO's formulas"
        )
        yield f"{mean}limited by: {limits}"
        cores = library_cores(workload)
        if cores is not None:
            yield (
                f"this AU is the storage's, read with little CPU: DLIO's own loader wants {cores:.2f} cores an"
                f" accelerator, {cores * workload.ranks:.2f} in all, only to read and unpack with its library"
            )


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


def library_cores(workload: Workload) -> float | None:
    """Return the cores that one accelerator at full speed keeps busy with its library's reads, measured on this host.

    None where the dataset is on no local file system, or the library is not installed. DLIO's loader needs at least
    this: it also shuffles, resizes, collates and copies between processes.
    """
    seconds = mean_seconds(workload.train.computation_time)
    if not seconds or not workload.storage.has_paths:
        return None
    train, _ = dataset_layout.layouts(workload.dataset)
    reader, files_read = format_base.format_named(workload.dataset.format), 0
    start, cpu_start = time.monotonic(), time.process_time()
    try:
        while files_read < train.num_files and time.monotonic() - start < _MEASURED_SECONDS:
            path = train.path(files_read)
            with format_base.reading(path):
                decode = reader.load(path, 0, train.num_samples_per_file).decode
                if decode is not None:
                    decode()
            files_read += 1
    except DlemuError:
        return None
    return (time.process_time() - cpu_start) / files_read * workload.reader.batch_size / seconds


def rehearsal_of(
    plan: RehearsalPlan, hosts: int, memory_gib_per_host: float, report: Callable[[str], None]
) -> Rehearsal:
    """Return the rehearsal of a plan's workload; raises UserError."""
    check_launcher("mlperf run", plan.launcher)
    workload = plan.workload
    if not workload.workflow.train:
        raise UserError(
            f"workload={workload.model.name} has no rehearsal: wanted one of training; `dlemu checkpoint` measures a "
            "model's checkpoints, whose tree mlpstorage writes with dlemu in DLIO's place (docs/mlperf.md); `dlemu "
            "kvcache workload=mlperf_kv kv.option=1` runs an option of kv_cache"
        )
    check_runnable(workload)
    size = datasize(workload, edition=EDITION, hosts=hosts, memory_gib_per_host=memory_gib_per_host)
    return Rehearsal(plan=plan, size=size, report=report)
