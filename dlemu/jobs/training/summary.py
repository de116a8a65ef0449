"""summary.json: every published number of a run, as one frozen, typed value.

A field's docstring is its documentation: docs/results.md is made of them. JSON keys are the fields' names. Numbers
that do not exist (nothing computed, nothing read) are None. Formulas: docs/metrics.md. Fields may be added within a
schema version; none changes its meaning or disappears.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from datagen.quantiles import Percentiles as Percentiles
from dlemu.jobs.training.journal import CpuApart, StoppedEarly
from dlemu.metrics.changes import SpeedChange as SpeedChange
from dlemu.metrics.changes import Stall as Stall
from dlemu.metrics.delivery import EpochAudit as EpochAudit
from dlemu.metrics.findings import Finding, Number
from dlemu.metrics.limit import Limit as Limit
from dlemu.metrics.limit import OtherReaders as OtherReaders
from dlemu.metrics.loss import Loss as Loss
from dlemu.metrics.ran_out import FirstTouch as FirstTouch
from dlemu.metrics.ran_out import RanOut as RanOut
from dlemu.metrics.slow_folders import SlowFolder as SlowFolder
from dlemu.metrics.spread import Mean as Mean
from dlemu.metrics.spread import RankSpread as RankSpread
from dlemu.metrics.spread import Spread as Spread
from dlemu.metrics.stragglers import Straggler as Straggler
from dlemu.metrics.uncertainty import Uncertainty as Uncertainty
from dlemu.metrics.verdict import Outcome
from dlemu.results.parts import Environment, HostDevice, JobSummary, Requests


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long accelerators waited for their batches, in milliseconds."""

    kept_steps: Percentiles | None = None
    """Of the steps that the headline counts."""
    all_steps: Percentiles | None = None
    per_rank_p99: tuple[float | None, ...] = ()
    per_epoch: tuple[Percentiles | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The numbers. Those of training are None when no training step was measured."""

    au_percent: RankSpread | None = None
    """The headline: compute / (wait + compute + sync) over the kept steps, %."""
    au_sustained_percent: Mean | None = None
    """What an endless epoch on this storage would have: the supply while readers were at work, %."""
    au_uncertainty: Uncertainty | None = None
    """Of the sustained AU; null where too little was measured to tell."""
    prefetch_credit_percent: float | None = None
    """Share of the kept steps' batches that was read before these steps began, %."""
    au_whole_percent: RankSpread | None = None
    """The headline's formula over all steps, first steps included, %."""
    au_rules_percent: RankSpread | None = None
    """The same by its older name."""
    au_dlio_percent: Spread | None = None
    """By DLIO 2.x's formula, %."""
    au_dlio_v1_percent: Spread | None = None
    """By DLIO's formula of MLPerf Storage v1.0, %."""
    samples_per_second: RankSpread | None = None
    """Samples/s of training, first steps included."""
    app_mb_per_second: RankSpread | None = None
    """1e6 bytes/s that the loader read, caches included."""
    app_mib_per_second: RankSpread | None = None
    """2^20 bytes/s that the loader read."""
    app_bytes: int | None = None
    """Bytes read in training."""
    read_calls: int | None = None
    """Read calls made in training."""
    asked_request_bytes: Mean | None = None
    """`app_bytes` / `read_calls`: the mean read call; values None where a library makes calls that can't be seen."""
    device_request_kib: Mean | None = None
    """Mean size of the reads that the dataset's devices served, KiB; values None where no device is known."""
    reader_cpu_seconds_per_gb: float | None = None
    """CPU time of the workers that read for each 1e9 bytes; None where the kernel does not account for it."""
    library_cpu_seconds_per_gb: float | None = None
    """What it would be with the format's usual library in place of dlemu's reader, by the ratio in docs/benchmarks.md.

    None where that is not known: another engine, direct reading, a format without a figure."""
    samples: int | None = None
    """Samples read in training."""
    training_seconds: float | None = None
    """Time in training: without checkpoints, evaluations and what is between epochs, s."""
    time_to_first_batch_seconds: Spread | None = None
    """The slowest rank's wait for the first batch of an epoch, s."""
    wait_ms: Waits | None = None
    """Waits for batches, ms."""
    read_ms: Percentiles | None = None
    """Time of a batch spent in opening and reading files, ms."""
    handover_share_of_wait: float | None = None
    """Share of the waiting that passed after the batch was ready in its worker, 0 to 1."""
    host_oversleep_ms: Percentiles | None = None
    """How late the host woke after a computation, ms."""
    device_mb_per_second: Mean | None = None
    """1e6 bytes/s that the dataset's devices delivered; values None where no device is known."""
    device_bytes_percent_of_app: Mean | None = None
    """Bytes that the devices delivered in % of `app_bytes`; values None where no device is known."""
    ceiling_au_percent: float | None = None
    """The emulator's own AU against null storage on this host, %; None when not measured."""
    au_threshold_percent: float = 90.0
    """100 x `metric.au`."""
    total_seconds: float | None = None
    """From the first epoch's start to the end of the last; None for an incomplete run."""
    cpu_seconds: float | None = None
    """CPU time of ranks and workers in that time; None for an incomplete run."""
    cpu_seconds_per_gb: float | None = None
    """The same for each 1e9 bytes read."""
    read_cpu_seconds_per_gb: float | None = None
    """The same without checkpoints, for each 1e9 bytes read in training and evaluation: what reading and training cost;
    null where checkpoints are not known apart."""
    cpu_apart: CpuApart | None = None
    """CPU seconds of all ranks with their workers for what is no reading; null of results of older versions."""
    dropped_samples: int = 0
    """Samples of an epoch that no rank reads, for they do not fill a batch on every rank."""
    epochs: int = 0
    """Planned epochs."""
    steps_per_epoch: tuple[int, ...] = ()
    """Planned steps of each epoch."""

    @property
    def sustained_percent(self) -> float | None:
        """The sustained AU of the whole run; None where there is none."""
        return self.au_sustained_percent.mean if self.au_sustained_percent else None


@dataclass(frozen=True, kw_only=True)
class PageCache:
    """Whether the storage was read, or memory."""

    from_storage_percent: Mean
    """Bytes that the storage served in % of those read; values None where the kernel does not report it."""
    served_percent: float | None = None
    """The same by the smaller of the kernel's accounting and the devices' bytes, each epoch 100 at most."""
    dataset_to_memory_ratio: float | None = None
    """Bytes of the dataset / memory of all hosts."""
    eviction_seconds: tuple[float, ...] = ()
    """Time of each eviction (`reader.evict_page_cache`)."""
    warning: str | None = None
    """What a reader of the numbers must know."""
    finding: Finding | None = None
    """The same as a code with its numbers; null in results of older versions."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All evaluations together."""

    seconds: float
    samples: int
    samples_per_second: float | None
    app_mb_per_second: float | None
    """1e6 bytes/s."""


@dataclass(frozen=True, kw_only=True)
class CheckpointTiming:
    """One checkpoint as rank 0 saw it."""

    epoch: int
    block: int
    """Block of steps that it followed."""
    bytes: int
    """Of all ranks."""
    started_ns: int
    """CLOCK_MONOTONIC of rank 0."""
    ended_ns: int
    seconds: float
    mb_per_second: float | None
    """1e6 bytes/s."""
    stall_seconds: float | None = None
    """How long training stalled for it: less than `seconds` with `checkpoint.asynchronous`."""


@dataclass(frozen=True, kw_only=True)
class AsynchronousCheckpoints:
    """Of checkpoints that went to the storage while training went on (`checkpoint.asynchronous`)."""

    stall_seconds: float
    """Mean time that training stalled for one."""
    safe_seconds: float
    """Mean time from the moment training wanted one until it was on the storage."""
    steps_during: int
    """Steps that rank 0 took while one was being written."""
    step_seconds_during: float | None
    """Their mean duration, wait and all."""
    step_seconds_otherwise: float | None
    """That of the other steps."""
    slow_down_percent: float | None
    """How much longer a step takes while a checkpoint is being written."""
    shortest_interval_seconds: float
    """Least time to train between two that leaves training `metric.au` of the time."""


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """What was read."""

    data_folder: str
    format: str
    num_files_train: int
    num_samples_per_file: int
    total_bytes: int
    """Of the files in use."""
    is_own: bool = False
    """The user's own files, which dlemu did not make (`dataset.source=folder`)."""


@dataclass(frozen=True, kw_only=True)
class ReadSettings:
    """The settings that change what the numbers mean."""

    data_loader: str
    engine: str
    decode: str
    odirect: bool
    evict_page_cache: str
    synchronous: bool
    batch_size: int
    read_threads: int
    file_shuffle: str
    sample_shuffle: str
    verified: bool
    transfer_size: int | None = None
    """Most bytes that a read call requested; 0: a file, record or column at once; None: as a library likes."""
    reader_version: int = 1
    """Of dlemu's reader: a new one where an engine's read calls changed. 1 in results of before they had a number."""


@dataclass(frozen=True, kw_only=True)
class RecorderCost:
    """What the recorder of one host did and cost."""

    host: str
    readings: int
    cpu_percent: float | None
    """Of one core."""


@dataclass(frozen=True, kw_only=True)
class MeterPower:
    """One power meter during training."""

    host: str
    source: str
    mean_watts: float | None
    gb_per_second_per_watt: float | None
    """1e9 bytes/s that the application read, for each watt."""


@dataclass(frozen=True, kw_only=True)
class TelemetrySummary:
    """What was recorded and by whom."""

    interval_seconds: float
    probes: tuple[str, ...] = ()
    """Those that found something."""
    devices: tuple[HostDevice, ...] = ()
    notes: tuple[str, ...] = ()
    recorders: tuple[RecorderCost, ...] = ()
    clock_offsets_ns: tuple[tuple[int, ...], ...] = ()
    """For each epoch: what to add to each host's CLOCK_MONOTONIC to get the first host's; empty for one host."""
    power: tuple[MeterPower, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Summary(JobSummary):
    """The result of a run, complete when every step of every epoch was measured. A rank is an accelerator."""

    kind: str = "training"
    stopped_early: StoppedEarly | None = None
    """Of a run that was stopped early, as `dlemu size` does once a verdict is certain; else None.

    Everything else is then as of a run of `train.total_training_steps=steps`.
    """
    passed: bool | None
    """None: no verdict."""
    outcome: Outcome | None = None
    """`pass`, `fail`, `undecided` or `no verdict`, as the exit status says; None in results of older versions."""
    verdict_code: str | None = None
    """`pass`, `fail`, `undecided`, or why there is no verdict: `incomplete`, `nothing_computed`, `emulator_too_slow`,
    `cache_served`, `too_few_steps`, `supply_not_known` or `host_limited`; None in results of older versions."""
    verdict_numbers: dict[str, Number] = field(default_factory=dict)
    """What the verdict rests on: the AU, the threshold, and what its code is of."""
    accelerator: str | None
    """None when none was chosen; so `scale`."""
    scale: str | None
    ranks_per_host: tuple[int, ...] = ()
    seed: int = 0
    """Of the shuffles and draws: `train.seed`, or a fresh one when a shuffle is `random`."""
    metrics: Metrics = field(default_factory=Metrics)
    loss_percent: Loss | None = None
    """Where the loss went; the parts add up to 100 - `au_whole_percent`."""
    kept_loss_percent: Loss | None = None
    """The same for the steps that the headline counts; the parts add up to 100 - `au_percent`."""
    loss_percent_per_epoch: tuple[Loss, ...] = ()
    limited_by: Limit | None = None
    """None when nothing computed."""
    stragglers: tuple[Straggler, ...] = ()
    """Those for whom the others waited, worst first."""
    speed_changes: tuple[SpeedChange, ...] = ()
    """When the storage's speed changed, in order; what it gives shows where accelerators waited for it."""
    stalls: tuple[Stall, ...] = ()
    """When the storage stalled for a second or more, in order."""
    ran_out: RanOut | None = None
    """A cache or burst credit that ran out: the first bytes came faster. Null where the changes are of another kind."""
    first_touch: FirstTouch | None = None
    """A volume that is slow when a block is read for the first time; null where not the first epoch alone was slow."""
    slow_folders: tuple[SlowFolder, ...] = ()
    """Sub-folders of the dataset that read slower than the others, slowest first."""
    other_readers: OtherReaders | None = None
    """Null where others read little from the dataset's devices, or where that is not known."""
    page_cache: PageCache | None = None
    requests: Requests | None = None
    """Null where no requests were made."""
    evaluation: Evaluation | None = None
    checkpoints: tuple[CheckpointTiming, ...] = ()
    asynchronous_checkpoints: AsynchronousCheckpoints | None = None
    """None without such checkpoints."""
    audit: tuple[EpochAudit, ...] = ()
    """One entry an epoch."""
    dataset: DatasetFacts
    how: ReadSettings
    environment: Environment = field(default_factory=Environment)
    telemetry: TelemetrySummary | None = None
    """None when nothing was recorded."""
    issues: tuple[str, ...] = ()
    """What a reader of the numbers must know, as sentences."""
    findings: tuple[Finding, ...] = ()
    """The same in the same order, as codes with their numbers; empty in results of older versions."""

    @property
    def au(self) -> RankSpread | None:
        """The headline AU, %; None when no step was measured."""
        return self.metrics.au_percent

    @property
    def title(self) -> str:
        """What ran, in a few words."""
        kind = f"x {self.accelerator}" if self.accelerator else "ranks"
        return f"{self.name}: {self.ranks} {kind}"

    @property
    def name(self) -> str:
        """The workload's name; of a user's own files without a workload, that of their folder."""
        own = self.dataset.is_own and self.workload == "default"  # no workload was named
        return (own and os.path.basename(os.path.abspath(self.dataset.data_folder))) or self.workload
