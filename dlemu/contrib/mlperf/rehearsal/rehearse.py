"""Rehearses a result: makes all its runs, one after another, copies each into the edition's tree, checks the tree."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from statistics import fmean, pstdev
from typing import Any, ClassVar, Generic, TypeVar

import yaml

from dlemu.config import check_checkpoints, check_runnable, datagen_command
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.audit.call_records import STAMP_FORMAT
from dlemu.contrib.mlperf.audit.run_settings import Printed, read_printed
from dlemu.contrib.mlperf.check.checkpoint_rules import figures_of
from dlemu.contrib.mlperf.check.copy_rules import training_sums
from dlemu.contrib.mlperf.check.judge import Checked, check_folder
from dlemu.contrib.mlperf.check.submission_tree import REHEARSAL
from dlemu.contrib.mlperf.check.tree_rules import CONFIG_FOLDER, RESULTS
from dlemu.contrib.mlperf.rehearsal import DIVISION, EDITION, NOTE, edition_tree
from dlemu.contrib.mlperf.rehearsal.datasize import CheckpointDatasize, Datasize, checkpoint_datasize, datasize
from dlemu.contrib.mlperf.rehearsal.edition_tree import RehearsalPlan, copy_into_tree, same_file_system, write_json
from dlemu.contrib.mlperf.rules.checkpoints import MEMORY_FACTOR
from dlemu.contrib.mlperf.rules.editions import MEASURED_RUNS
from dlemu.extend import DlemuError, UserError, check_launcher, format_base, inspect, owned, write_text
from dlemu.results.kinds import read_result
from dlemu.results.wording import at_scale

WARM_UP = "warm-up"
_LIBRARY_SECONDS = 2.0  # how long `library_cores` reads files
_CHECKPOINT_ACCELERATOR = "b200"  # the metadata must name one; its memory must hold the checkpoint (4.3.4)
Size = TypeVar("Size", Datasize, CheckpointDatasize)


@dataclass(kw_only=True)
class Call:
    """One call of the tool: a run of training, or of checkpointing."""

    label: str
    settings: tuple[str, ...]
    stamp: str = ""
    """Time of its start, YYYYMMDD_HHMMSS; empty until then."""
    folder: str = ""
    """Its result folder, relative to the rehearsal's."""
    failure: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Rehearsal(ABC, Generic[Size]):
    """A rehearsal. The rules limit the time between calls, so an interrupted one can't be continued."""

    command: ClassVar[str]
    """The command of dlemu that makes a call."""
    defaults: ClassVar[tuple[str, ...]] = ()
    """Overrides that the user's overrides may replace."""
    plan: RehearsalPlan
    size: Size
    """The size of the data that the rules require."""
    report: Callable[[str], None]
    """Shows a line of progress."""
    now: Callable[[], datetime] = datetime.now
    """Local time, by which the calls' folders are named."""
    started: list[Call] = field(default_factory=list)
    """The calls so far, including a failed one."""

    @abstractmethod
    def calls(self) -> Sequence[Call]:
        """Return all calls, in order."""

    def prepare(self) -> None:
        """Write the files that precede the first call; raises UserError for wrong settings."""
        owned.take_folder(self.plan.folder, "output.folder")
        write_text(self.plan.tree, "README.txt", f"{NOTE}\n")
        edition_tree.write_system(self.plan, self.size.hosts, self.size.memory_gib_per_host)

    def outcome(self, checked: Checked) -> tuple[int, list[str]]:
        """Return the exit status, and lines on the result, if any."""
        return (0 if checked.valid else 1), []

    @abstractmethod
    def lay_out(self, call: Call, run: str, times: tuple[str, str]) -> None:
        """Copy a finished call from its folder `run` into the tree, and write the sums; `times`: its start and end."""

    def run(self) -> Checked:
        """Make all calls, write the tree and check it; raises DlemuError or Interrupted if a call fails or is stopped.

        Raises UserError before the first call, for wrong settings or a folder that holds a rehearsal.
        """
        if os.path.exists(os.path.join(self.plan.folder, REHEARSAL)):
            raise UserError(f"{self.plan.folder} holds a rehearsal already: set output.folder to a new folder")
        self.prepare()
        self._save(complete=False)
        for call in self.calls():
            self._make_call(call)
        self._save(complete=True)
        return check_folder(self.plan.folder)

    def _make_call(self, call: Call) -> None:
        stamps = [earlier.stamp for earlier in self.started]
        while (stamp := self.now().strftime(STAMP_FORMAT)) in stamps:  # two short calls may begin in one second
            time.sleep(0.1)
        run = owned.fresh_folder(os.path.join(self.plan.folder, "runs"), f"{stamp}-{call.label.replace(' ', '-')}")
        call.stamp, call.folder = stamp, os.path.relpath(run, self.plan.folder)
        self.started.append(call)
        self.report(f"{call.label} ...")
        start = self.now()
        try:
            # No report page: it takes seconds, and the rules limit the time between two calls.
            overrides = [*self.defaults, *self.plan.overrides, *call.settings, "output.report=false"]
            self.plan.run(overrides, run, self.command)
        except BaseException as error:
            call.failure = str(error) or "interrupted"
            self._save(complete=False)
            raise
        self.lay_out(call, run, (start.isoformat(), self.now().isoformat()))
        self._save(complete=False)

    def write_sums(self, result: str, **sums: object) -> None:
        """Write the sums over the calls so far into results.json, in the folder `result`."""
        runs = [{"run_datetime": call.stamp, "label": call.label} for call in self.started]
        write_json(result, RESULTS, {"rehearsal": NOTE, "runs": runs, **sums})

    def _save(self, *, complete: bool) -> None:
        record = {"rehearsal": NOTE, "complete": complete, "edition": EDITION, "division": DIVISION}
        write_json(self.plan.folder, REHEARSAL, {**record, "calls": list(map(asdict, self.started))})


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of one finished run of training."""

    printed: Printed
    """The run's summary in DLIO's format, as the edition's tool would print it."""
    au_percent: float | None
    """dlemu's own AU, from the accelerators' timelines."""
    held_back: bool
    """Whether the run failed because of this host: without any storage, its AU would be too low as well."""
    limited_by: str | None

    @property
    def passed(self) -> bool:
        return self.printed.verdict == "success"


@dataclass(kw_only=True)
class TrainingRehearsal(Rehearsal[Datasize]):
    command = "train"
    defaults = ("metric.verdict=au",)  # as the edition's tool judges
    finished: list[Figures] = field(default_factory=list)
    """Figures of the finished runs, the warm-up first."""

    def calls(self) -> Sequence[Call]:
        """Return a warm-up and the measured runs, each with a different seed for its shuffles."""
        labels = [WARM_UP, *(f"run {number + 1}" for number in range(MEASURED_RUNS))]
        seed = self.plan.workload.train.seed
        no_datagen = "workflow.generate_data=false"
        return [Call(label=label, settings=(no_datagen, f"train.seed={seed + n}")) for n, label in enumerate(labels)]

    def prepare(self) -> None:
        """Inspect the dataset, write the phases before the runs, report the plan; UserError without the dataset."""
        began_at = self.now()
        plan, bound, workload = self.plan, self.size.bound, self.plan.workload
        inspect(workload.dataset, command_hint=lambda: datagen_command(workload), storage=workload.storage_spec)
        super().prepare()
        edition_tree.write_datasize(plan, self.size, began_at)
        edition_tree.write_datagen(plan, began_at)
        accelerators = f"{workload.ranks} x {workload.accelerator}{at_scale(None, workload.scale)}"
        self.report(f"rehearsal of MLPerf Storage v{EDITION} {DIVISION.upper()}: {workload.model.name}, {accelerators}")
        self.report(NOTE)
        files = workload.dataset.num_files_train
        warning = "" if files >= bound.files else ": TOO SMALL, the result will not be valid"
        self.report(f"dataset: {files:,} files; the rules require {bound.files:,} or more ({bound.because}){warning}")
        if workload.storage.has_paths and same_file_system(workload.dataset.data_folder, os.path.dirname(plan.tree)):
            self.report("data and results share a file system, which the rules forbid: set output.folder")
        self.report(f"results: {plan.folder}")

    def lay_out(self, call: Call, run: str, times: tuple[str, str]) -> None:
        """Copy the run into the tree, report it, and write the sums over the measured runs so far."""
        figures = read_figures(run)
        printed, plan, workload = figures.printed, self.plan, self.plan.workload
        metadata = edition_tree.training_metadata(plan, "run", call.stamp, printed.num_files or 0)
        metadata["parameters"]["train"]["seed"] = int(call.settings[-1].partition("=")[2])  # of `train.seed=SEED`
        metadata["num_processes"] = metadata["args"]["num_accelerators"] = printed.accelerators
        metadata["args"]["client_host_memory_in_gb"] = (printed.memory_gib or 0) / (printed.hosts or 1)
        metadata["args"]["num_client_hosts"] = printed.hosts
        runs = os.path.join(plan.result("training", workload.model.name), "run")
        copy_into_tree(plan, run, os.path.join(runs, call.stamp), metadata, times, workload.dataset.data_folder)
        call.figures = asdict(figures)
        verdict = "passes" if figures.passed else "does not pass"
        au, rate = printed.au_percent or 0, printed.samples_per_second or 0
        line = f"{call.label} {verdict}: AU {au:.2f} %, {rate:.1f} samples/s by DLIO's formulas"
        if figures.au_percent is not None:
            line += f"; dlemu's own AU {figures.au_percent:.2f} %"
        self.report(line)
        self.finished.append(figures)
        if call.label != WARM_UP:
            sums = training_sums([each.printed for each in self.finished[1:]])
            self.write_sums(runs, model=workload.model.name, num_accelerators=printed.accelerators, **sums)

    def outcome(self, checked: Checked) -> tuple[int, list[str]]:
        """Return the exit status (4, no verdict, if only this host kept runs from passing), and lines on the runs."""
        lines = list(self._outcome_lines())
        failed = [run for run in self.finished if not run.passed]
        broken_rules = {finding.rule for finding in checked.findings if finding.severity == "error"}
        if failed and all(run.held_back for run in failed) and broken_rules <= {"au.low"}:
            return 4, lines
        return (1 if failed or broken_rules else 0), lines

    def _outcome_lines(self) -> Iterator[str]:
        runs, workload = self.finished[1:], self.plan.workload
        aus = [run.printed.au_percent or 0.0 for run in runs]
        rates = [run.printed.samples_per_second or 0.0 for run in runs]
        cov_percent = 100 * pstdev(rates) / (fmean(rates) or 1)
        yield (
            f"{sum(run.passed for run in runs)} of {len(runs)} runs pass: AU {fmean(aus):.1f} % +- {pstdev(aus):.1f},"
            f" {fmean(rates):,.0f} samples/s (mean of {len(runs)}, CoV {cov_percent:.1f} %), by DLIO's formulas"
        )
        own_aus = [run.au_percent for run in runs if run.au_percent is not None]
        has_all = len(own_aus) == len(runs)
        own_au = f"dlemu's own AU: {fmean(own_aus):.1f} % +- {pstdev(own_aus):.1f}; " if has_all else ""
        limits = ", ".join(sorted({run.limited_by for run in runs if run.limited_by})) or "not known"
        yield f"{own_au}limited by: {limits}"
        cores = library_cores(workload)
        if cores is not None:
            yield (
                f"this AU is the storage's, read with little CPU: DLIO's own loader wants {cores:.2f} cores an"
                f" accelerator, {cores * workload.ranks:.2f} in all, only to read and unpack with its library"
            )


def read_figures(folder: str) -> Figures:
    """Return the figures of a finished run; raises UserError for a damaged folder."""
    summary = read_result(folder).summary
    printed = read_printed(os.path.join(folder, "dlio"), [])
    ceiling, threshold = summary.metrics.ceiling_au_percent, summary.metrics.au_threshold_percent
    return Figures(
        printed=printed,
        au_percent=summary.au.mean if summary.au else None,
        held_back=printed.verdict != "success" and ceiling is not None and ceiling < threshold,
        limited_by=summary.limited_by.what if summary.limited_by else None,
    )


def library_cores(workload: Workload) -> float | None:
    """Return the number of cores that the reads of one accelerator at full speed keep busy, measured on this host.

    The reads are those of the format's library, such as `numpy.load`. DLIO's loader needs more cores: it also shuffles,
    resizes, collates and copies between processes. None if the data is in no files, or the library is missing.
    """
    seconds = mean_seconds(workload.train.computation_time)
    if not seconds or not workload.storage.has_paths:
        return None
    reader = format_base.format_named(workload.dataset.format)
    files_read = 0  # of each, one sample is loaded
    try:
        train = inspect(workload.dataset, storage=workload.storage_spec).train
        start, cpu_start = time.monotonic(), time.process_time()
        while files_read < train.num_files and time.monotonic() - start < _LIBRARY_SECONDS:
            path = train.path(files_read)
            with format_base.reading(path):
                decode = reader.load(path, 0, train.num_samples_per_file).decode
                if decode is not None:
                    decode()
            files_read += 1
    except DlemuError:
        return None
    cpu_seconds_per_sample = (time.process_time() - cpu_start) / files_read
    return cpu_seconds_per_sample * workload.reader.batch_size / seconds


@dataclass(kw_only=True)
class CheckpointRehearsal(Rehearsal[CheckpointDatasize]):
    command = "checkpoint"

    def calls(self) -> Sequence[Call]:
        """Return one call; or two, between which caches can be dropped, if the hosts' memory could serve the reads."""
        if self.size.memory_factor > MEMORY_FACTOR:
            return [Call(label="both", settings=())]
        settings = {"write": "checkpoint.num_checkpoints_read=0", "read": "checkpoint.num_checkpoints_write=0"}
        return [Call(label=label, settings=(setting,)) for label, setting in settings.items()]

    def prepare(self) -> None:
        """Take the results folder and report the plan."""
        super().prepare()
        processes = f"{self.plan.workload.ranks} processes"
        self.report(f"rehearsal of MLPerf Storage v{EDITION} {DIVISION.upper()}: {self.size.model}, {processes}")
        self.report(NOTE)
        labels = " and ".join(call.label for call in self.calls())
        self.report(f"calls: {labels}; {self.size.room_gib:,.0f} GiB in ten checkpoints; results: {self.plan.folder}")

    def lay_out(self, call: Call, run: str, times: tuple[str, str]) -> None:
        """Copy the call into the tree, and write the sums over the calls so far."""
        folder = self.plan.workload.checkpoint.checkpoint_folder
        result = self.plan.result("checkpointing", self.size.model)
        with open(os.path.join(run, "dlio", CONFIG_FOLDER, "config.yaml")) as config:
            settings = yaml.safe_load(config)["workload"]
        args = {"checkpoint_folder": folder, "num_processes": self.plan.workload.ranks}
        keys = {"benchmark_type": "checkpointing", "command": "run", "run_datetime": call.stamp, "parameters": settings}
        metadata = edition_tree.call_metadata(self.plan, self.size.model, _CHECKPOINT_ACCELERATOR, keys, args)
        copy_into_tree(self.plan, run, os.path.join(result, call.stamp), metadata, times, folder)
        for checked_result in check_folder(self.plan.tree).results:
            call.figures = {f"{kind}_gib_per_second": rate for kind, rate in figures_of(checked_result).items()}
        self.write_sums(result, model=self.size.model, num_processes=self.plan.workload.ranks, **call.figures)


def rehearsal_of(
    plan: RehearsalPlan, hosts: int, memory_gib_per_host: float, report: Callable[[str], None]
) -> TrainingRehearsal | CheckpointRehearsal:
    """Return the rehearsal of a plan's workload; UserError if the workload or the launcher does not allow one."""
    check_launcher("mlperf run", plan.launcher)
    workload = plan.workload
    if workload.workflow.train:
        check_runnable(workload)
        size = datasize(workload, edition=EDITION, hosts=hosts, memory_gib_per_host=memory_gib_per_host)
        return TrainingRehearsal(plan=plan, size=size, report=report)
    if workload.workflow.checkpoint:
        check_checkpoints(workload)
        sizes = checkpoint_datasize(workload, edition=EDITION, hosts=hosts, memory_gib_per_host=memory_gib_per_host)
        return CheckpointRehearsal(plan=plan, size=sizes, report=report)
    raise UserError(
        f"workload={workload.model.name} has no rehearsal: wanted one of training or of checkpoints; `dlemu "
        "kvcache workload=mlperf_kv kv.option=1` runs an option of kv_cache"
    )
