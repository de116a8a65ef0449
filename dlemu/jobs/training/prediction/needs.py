"""What jobs need of a storage that is still to be bought, by arithmetic alone: reads, space, checkpoints, network."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from datagen.errors import UserError
from datagen.settings import build
from datagen.withheld import redact_argv
from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.config import load
from dlemu.config.overrides import given_keys, take_word
from dlemu.config.schema import Storage, Workload
from dlemu.config.workload_files import read_plain
from dlemu.jobs.training.prediction.calibration import requests_of
from dlemu.jobs.training.prediction.prediction import NO_COMPUTATION
from dlemu.metrics.demand import demand, sample_divisor
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Table, columns
from dlemu.results.answer_files import Answer, save_answer
from dlemu.results.kinds import Parts
from dlemu.results.parts import OutcomeField, WorkloadFields
from dlemu.results.wording import count
from dlemu.runner.prediction_request import PredictionRequest
from dlemu.runner.run_folder import check_new, new_folder

NEEDS = "needs.json"
NvidiaClass = Literal["good", "better", "best", "above"]
GPUS_PER_NODE, GPUS_PER_UNIT = 8, 256  # GPUs of one of NVIDIA's DGX nodes, and of a scalable unit of its DGX SuperPOD
# NVIDIA's classes of storage: GB/s that a node reads, a node writes, a scalable unit reads, and a unit writes (DGX
# SuperPOD's reference architecture, H100, tables 5 and 6). The table's figures of four units are divided by 4.
_CLASSES: dict[NvidiaClass, tuple[float, float, float, float]] = {
    "good": (4, 2, 15, 7.5),
    "better": (8, 4, 40, 20),
    "best": (40, 20, 125, 62.5),
}
MEMORY_GB = 2048 * 1.073741824  # memory of a DGX H100
LOST_PERCENT = 5.0  # share of training time that synchronous checkpoints may take here: a choice, not a rule
WATCHDOG_SECONDS = 600.0  # default of NCCL's watchdog, which ends a job whose ranks wait longer than this for a rank
MLPERF_STEPS, MLPERF_MEMORY_TIMES = 500, 5  # MLPerf Storage's smallest dataset, in steps and in times the hosts' memory
PORT_GB_PER_SECOND = {100: 12.5, 400: 50.0}  # Gb/s of a network port -> its line rate


@dataclass(frozen=True, kw_only=True)
class Needs(WorkloadFields):
    """What a job needs of its storage, or all jobs together. 1 GB = 1e9 bytes."""

    accelerators: int = 0
    nodes: int = 0
    read_gb_per_second: float = 0.0
    """Rate at which the AU reaches its threshold."""
    first_step_gb_per_second: float = 0.0
    """Rate at which the first batches, one of each reader, take no longer than a step."""
    first_step_seconds: float = 0.0
    """Time that the first batches take at `read_gb_per_second`; of several jobs the longest."""
    requests_per_second: float = 0.0
    """Those that reach the storage: the kernel splits reads."""
    dataset_gb: float = 0.0
    mlperf_dataset_gb: float = 0.0
    """Least dataset that MLPerf Storage's rules allow: five times the memory of the nodes, or 500 steps."""
    checkpoint_gb: float = 0.0
    checkpoint_minutes: float = 0.0
    """Between two checkpoints (`checkpoint.interval_seconds`); of several jobs the shortest."""
    write_gb_per_second: float = 0.0
    """Rate for synchronous checkpoints: training loses 5 % of its time, and NCCL's watchdog ends no job."""
    drain_gb_per_second: float = 0.0
    """Rate for asynchronous checkpoints: each is written before the next is due."""
    restart_gb_per_second: float = 0.0
    """Rate at which all ranks read a checkpoint within `restart_minutes`."""

    @property
    def most_gb_per_second(self) -> float:
        """The highest of reads, asynchronous writes and restart."""
        return max(self.read_gb_per_second, self.drain_gb_per_second, self.restart_gb_per_second)


@dataclass(frozen=True, kw_only=True)
class NeedsAnswer(OutcomeField, Answer):
    """What jobs need that run at the same time: needs.json, from `dlemu predict` without a storage."""

    overrides: tuple[str, ...] = ()
    jobs: tuple[Needs, ...]
    total: Needs
    restart_minutes: float
    nvidia_class: NvidiaClass
    times_class: float
    """The larger of reads and writes, relative to that class, or to the best."""


def needs(
    jobs: Sequence[Workload], source: Sequence[str] | Workload, request: PredictionRequest
) -> tuple[NeedsAnswer, str, Workload]:
    """Return what the jobs of a source need of their storage, the answer's folder, and the first job; UserError."""
    if request.most or request.host_cores or request.others_mb_per_second:
        raise UserError("--most, --host-cores and --others-mb-per-second are for a storage: wanted --mb-per-second X")
    first = jobs[0]
    overrides = () if isinstance(source, Workload) else source
    folder = first.output.folder or new_folder(first.model.name, "needs-")
    check_new(folder)
    needs_of_jobs = [_needs_of(job, request) for job in jobs]
    total = _sum_of(needs_of_jobs)
    nvidia_class, times_class = _nvidia_class(total)
    answer = NeedsAnswer(
        overrides=tuple(redact_argv(take_word(overrides, "output.folder")[1])),
        jobs=tuple(needs_of_jobs),
        total=total,
        restart_minutes=request.restart_minutes,
        nvidia_class=nvidia_class,
        times_class=times_class,
    )
    save_answer(folder, NEEDS, answer)
    return answer, folder, replace(first, output=replace(first.output, report=False))  # a page would show no more


# From here on: the jobs
@dataclass(frozen=True, kw_only=True)
class _JobsFile:
    """A file of jobs that run at the same time."""

    jobs: tuple[str, ...]  # the settings of each, such as `workload=unet3d ranks=8`


def jobs_without_storage(source: Sequence[str] | Workload, request: PredictionRequest) -> list[Workload]:
    """Return the job of a source, or those of the jobs file among its overrides; none if there is a storage.

    There is one if the request describes it or makes data, or a lone training job names or finds it. Raises UserError.
    """
    overrides = [] if isinstance(source, Workload) else list(source)
    for setting in overrides:
        if setting.lstrip("+").startswith("workload=") and "," in setting and not {"'", '"'} & set(setting):
            raise UserError(
                f"{setting} has several values: for what several jobs need together, name a file of them, as in `dlemu "
                "predict jobs.yaml` with `jobs: [workload=unet3d ranks=8, workload=llama3_70b ranks=512]` in it"
            )
    jobs_file = next((word for word in overrides if word.endswith((".yaml", ".yml")) and "=" not in word), None)
    if request.describes_storage or request.make is not None:
        if jobs_file is not None:
            raise UserError(f"{jobs_file} names jobs: for one of them on a storage, give its settings")
        return []
    if jobs_file is not None:  # the other overrides are settings of each job
        overrides.remove(jobs_file)
        jobs = [[*shlex.split(job), *overrides] for job in build(_JobsFile, read_plain(jobs_file)).jobs]
        if not jobs:
            raise UserError("there is no job to predict for: wanted some in the file's `jobs`")
        return [load(settings, config_dir=request.config_dir) for settings in jobs]
    job = source if isinstance(source, Workload) else load(overrides, config_dir=request.config_dir)
    # An object does not tell whether its data was named: it counts as named.
    names_data = job is source or not given_keys(overrides).isdisjoint(("dataset.data_folder", "dataset.source"))
    if job.workflow.train and (names_data or job.storage != Storage() or os.path.exists(job.dataset.data_folder)):
        return []  # its storage will be probed
    return [job]


# From here on: the needs by arithmetic, and the hardware that meets them
def _needs_of(workload: Workload, request: PredictionRequest) -> Needs:
    """Return the needs of one job; raises UserError without computation, or if the page cache is to serve reads."""
    ranks, reader, checkpoint = workload.ranks, workload.reader, workload.checkpoint
    if reader.page_cache_percent:
        raise UserError(
            f"reader.page_cache_percent is {reader.page_cache_percent:g}: what memory serves of the reads is measured, "
            "not predicted; wanted 0 for all that the job reads"
        )
    one_demand = demand(workload.model.name, workload)  # of one accelerator
    if workload.workflow.train and one_demand.samples_per_second is None:
        raise UserError(NO_COMPUTATION)
    nodes = request.hosts or math.ceil(ranks / GPUS_PER_NODE)
    saved_gb, interval_seconds = 0.0, checkpoint.interval_seconds
    if workload.workflow.checkpoint:
        saved_gb = plan_checkpoint(workload.model, checkpoint, ranks).sizes.bytes / 1e9
    stall_seconds = min(WATCHDOG_SECONDS, interval_seconds * LOST_PERCENT / (100 - LOST_PERCENT))
    without_reads = Needs(
        workload=workload.model.name,
        accelerator=workload.accelerator,
        sample_divisor=sample_divisor(workload),
        accelerators=ranks,
        nodes=nodes,
        checkpoint_gb=saved_gb,
        checkpoint_minutes=interval_seconds / 60,
        write_gb_per_second=saved_gb / stall_seconds,
        drain_gb_per_second=saved_gb / interval_seconds,
        restart_gb_per_second=saved_gb / (60 * request.restart_minutes),
    )
    if not workload.workflow.train:
        return without_reads
    step_gb = ranks * reader.batch_size * one_demand.sample_bytes / 1e9
    read_gb_per_second = workload.metric.au * step_gb / one_demand.computation_seconds
    first_gb = step_gb * max(1, reader.read_threads)
    request_bytes, _ = requests_of(workload, one_demand.sample_bytes)
    mlperf_gb = MLPERF_STEPS * ranks * reader.batch_size * one_demand.dataset_gb / max(1, one_demand.num_samples)
    return replace(
        without_reads,
        read_gb_per_second=read_gb_per_second,
        first_step_gb_per_second=first_gb / one_demand.computation_seconds,
        first_step_seconds=first_gb / read_gb_per_second if read_gb_per_second else 0.0,
        requests_per_second=read_gb_per_second * 1e9 / request_bytes,
        dataset_gb=one_demand.dataset_gb,
        mlperf_dataset_gb=max(mlperf_gb, MLPERF_MEMORY_TIMES * nodes * MEMORY_GB),
    )


def _sum_of(jobs: Sequence[Needs]) -> Needs:
    """Return the sum of each need over all jobs; but the shortest checkpoint interval and the longest first step."""
    values = {field.name: [getattr(job, field.name) for job in jobs] for field in fields(Needs)}
    workloads, accelerators, divisors = (values.pop(field.name) for field in fields(WorkloadFields))
    sums = {name: sum(numbers) for name, numbers in values.items()}
    sums["checkpoint_minutes"] = min((job.checkpoint_minutes for job in jobs if job.checkpoint_gb), default=0.0)
    sums["first_step_seconds"] = max(values["first_step_seconds"])
    divisor = divisors[0] if len(set(divisors)) == 1 else None
    return Needs(workload=" + ".join(workloads), accelerator=accelerators[0], sample_divisor=divisor, **sums)


def _nvidia_class(total: Needs) -> tuple[NvidiaClass, float]:
    """Return the lowest class that suffices for reads and asynchronous checkpoints, and `NeedsAnswer.times_class`."""
    # A few nodes together may use the rate of one node; many nodes share the rate of their scalable units.
    units, times_class = total.accelerators / GPUS_PER_UNIT, 0.0
    for name, (node_read, node_write, unit_read, unit_write) in _CLASSES.items():
        reads = total.read_gb_per_second / max(node_read, units * unit_read)
        writes = total.drain_gb_per_second / max(node_write, units * unit_write)
        times_class = max(reads, writes)  # as multiples of the rates of this class; in the end, of the best
        if times_class <= 1:
            return name, times_class
    return "above", times_class


def ports(gb_per_second: float) -> str:
    """Return how many network ports at line rate carry a rate: `2 x 100 Gb/s or 1 x 400 Gb/s`."""
    return " or ".join(
        f"{math.ceil(gb_per_second / rate)} x {speed} Gb/s" for speed, rate in PORT_GB_PER_SECOND.items()
    )


# From here on: the screen
def _screen(answer: NeedsAnswer, folder: str) -> Screen:
    total, jobs = answer.total, answer.jobs
    # A node of the job with the highest rate per node; the average over all nodes would be too little for it.
    node_gb = max(job.most_gb_per_second / job.nodes for job in jobs)
    network = f"the storage {ports(total.most_gb_per_second)}; each node {ports(node_gb)}"
    storage = f"'{answer.nvidia_class}'"
    if answer.nvidia_class == "above":
        storage = f"{answer.times_class:.2g} times what the best gives: above all"
    question = f"is yours enough? dlemu predict {shlex.join(answer.overrides)} --mb-per-second X"
    accelerators = f"x {total.accelerator}" if total.accelerator else "accelerators"
    if any("=" not in word for word in answer.overrides):  # a file of jobs
        question = "one beside the others: dlemu predict workload=... --mb-per-second X --others-mb-per-second Y"
        accelerators = "accelerators"
    hardware = f"{total.workload}, {total.accelerators:,} {accelerators} on {count(total.nodes, 'node')}"
    read, write = total.read_gb_per_second, total.drain_gb_per_second
    rates = {"read": read, "write": write, "restart at": total.restart_gb_per_second}
    demands = [f"{verb} {_gb(gb)}/s" for verb, gb in rates.items() if gb > max(rates.values()) / 100]
    return Screen(
        title=f"{hardware}: the storage must {' and '.join(demands) or 'give next to nothing'}",
        lines=[
            *_rate_lines(answer),
            Said("network", network, "ports, if they reached their line rate"),
            Said("class", f"{storage} of NVIDIA's classes of storage for so large a DGX SuperPOD"),
            Said("from", "batch and step time of the workload's settings, by arithmetic", "not measured"),
            Said("next", question, "or --drive FILE: fio's or elbencho's JSON, a data sheet"),
        ],
        folder=folder,
        table=_jobs_table(answer) if len(jobs) > 1 else None,
    )


def _rate_lines(answer: NeedsAnswer) -> Iterator[Said]:
    """Yield the lines with the rates and the space that reads and checkpoints need."""
    total, read = answer.total, answer.total.read_gb_per_second
    if read:
        node = _gb(max(job.read_gb_per_second / job.nodes for job in answer.jobs))
        request_kib = read * 1e9 / total.requests_per_second / 1024
        requests = f"{_si(total.requests_per_second)} requests/s of {request_kib:.0f} KiB"
        mlperf_rule = f"{MLPERF_STEPS} steps, and {MLPERF_MEMORY_TIMES} times the memory of DGX H100s"
        without_wait = f"{_gb(total.first_step_gb_per_second)}/s if training must not wait for it"
        yield Said("read", f"{_gb(read)}/s, {node}/s a node", f"for the AU that passes; {requests}")
        yield Said("first step", f"{total.first_step_seconds:.2g} s at that rate, once an epoch", without_wait)
        yield Said("data", f"{_gb(total.dataset_gb)} as set; for MLPerf {_gb(total.mlperf_dataset_gb)}", mlperf_rule)
    else:
        yield Said("read", "next to nothing")
    if total.checkpoint_gb:
        size = _gb(total.checkpoint_gb)
        amount = f"{size} every {total.checkpoint_minutes:g} min; if waiting may cost {LOST_PERCENT:g} % of the time"
        rates = f"{_gb(total.drain_gb_per_second)}/s, or {_gb(total.write_gb_per_second)}/s if training waits"
        yield Said("write", rates, amount)
        time_limit = f"{size}, if it may take {answer.restart_minutes:g} min"
        yield Said("restart", f"{_gb(total.restart_gb_per_second)}/s", time_limit)


def _jobs_table(answer: NeedsAnswer) -> Table:
    rows = [
        (job.workload, f"{job.accelerators:,}", _gb(job.read_gb_per_second), _gb(job.drain_gb_per_second))
        for job in answer.jobs
    ]
    head = columns("job", "accelerators", "read per s", "written per s", right=(1, 2, 3))
    return Table(title="Jobs", columns=head, rows=rows)


def _gb(gb: float) -> str:
    return f"{_si(1e9 * gb)}B"


def _si(value: float) -> str:
    """Return a number with three digits, as needs are not more certain, and the prefix of its unit: `12.3 G`."""
    power = min(5, max(0, math.floor(math.log10(value) / 3))) if value else 0
    return f"{float(f'{value / 1000**power:.3g}'):,g} {('', 'k', 'M', 'G', 'T', 'P')[power]}"


PARTS = Parts(answer_type=NeedsAnswer, screen=_screen, sections=lambda answer, _: [_jobs_table(answer)])
