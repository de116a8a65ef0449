"""summary.json: every published number of a training run, as one frozen, typed value.

JSON keys are the fields' names, and docs/answers.md is generated from the fields' docstrings. Numbers that do not exist
(nothing computed, nothing read) are None. Formulas, and terms as "kept steps": docs/metrics.md. Within a schema
version fields may be added, but none changes its meaning or disappears.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from datagen.quantiles import Percentiles as Percentiles
from dlemu.metrics.au import Uncertainty as Uncertainty
from dlemu.metrics.cache import PARTLY_READ_PERCENT
from dlemu.metrics.catalogue import RUN, Metric
from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.limit import Limit as Limit
from dlemu.metrics.loss import Loss as Loss
from dlemu.metrics.rates import Mean as Mean
from dlemu.metrics.verdict import Outcome
from dlemu.report.units import number
from dlemu.results.parts import StorageSummary


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The metrics of a run; those of training are None when no training step was measured."""

    total_seconds: Annotated[
        float | None, Metric("total time", "s", "lower", head="total\ns", digits=1, is_drawn=True, phase=RUN)
    ] = None
    """From the start of the first epoch to the end of the last, s; None for an incomplete run."""
    au_percent: Annotated[
        Mean | None, Metric("AU, counted steps", "%", "higher", head="counted\n%", digits=2, is_drawn=True)
    ] = None
    """Compute / (wait + compute + sync) over the kept steps, %."""
    au_sustained_percent: Annotated[Mean | None, Metric("AU", "%", "higher", head="AU\n%", digits=2)] = None
    """The AU that the storage would sustain in an endless epoch, from the rate of reading of busy readers, %."""
    au_uncertainty: Uncertainty | None = None
    """Uncertainty of AU; null where too little was measured."""
    prefetch_credit_percent: Annotated[
        float | None, Metric("prefetch credit", "%", "neither", head="credit\n%", digits=1)
    ] = None
    """Share of the kept steps' batches that was read before the kept steps began, %."""
    au_whole_percent: Annotated[Mean | None, Metric("AU, whole epochs", "%", "higher")] = None
    """AU by the same formula over all steps, first steps included, %."""
    au_dlio_percent: Annotated[Mean | None, Metric("AU, DLIO 2.x", "%", "higher", is_compared=False)] = None
    """Measured compute / the host's time, the first step dropped: the formula of DLIO 2.x, %."""
    au_dlio_v1_percent: Annotated[Mean | None, Metric("AU, DLIO v1.0", "%", "higher", is_compared=False)] = None
    """Configured compute / the host's time: DLIO's formula in MLPerf Storage v1.0, %."""
    samples_per_second: Annotated[
        Mean | None, Metric("samples", "/s", "higher", axis="samples/s", head="samples\n/s", digits=2, is_drawn=True)
    ] = None
    """Samples/s in training, first steps included."""
    app_mb_per_second: Annotated[
        Mean | None, Metric("read by the application", "MB/s", "higher", axis="loader MB/s", head="app\nMB/s", digits=1)
    ] = None
    """1e6 bytes/s that the loader read, caches included."""
    app_bytes: int | None = None
    """Bytes read in training."""
    device_request_kib: Mean | None = None
    """Mean size of the reads that the dataset's devices served, KiB; values None where no device is known."""
    samples: int | None = None
    """Samples read in training."""
    training_seconds: Annotated[float | None, Metric("training", "s", "lower", is_compared=False)] = None
    """Time in training, without checkpoints, evaluations and the time between epochs, s."""
    time_to_first_batch_seconds: Annotated[Mean | None, Metric("time to first batch", "s", "lower")] = None
    """Wait of the slowest rank for the first batch of an epoch, s."""
    wait_ms: Percentiles | None = None
    """Waits for batches over the kept steps, ms."""
    host_oversleep_ms: Percentiles | None = None
    """How late the host woke after an emulated computation, ms."""
    device_mb_per_second: Annotated[
        Mean | None,
        Metric(
            "read from the device",
            "MB/s",
            "higher",
            axis="mean device MB/s",
            head="device\nMB/s",
            digits=1,
            is_drawn=True,
        ),
    ] = None
    """1e6 bytes/s that the dataset's devices delivered; values None where no device is known."""
    ceiling_au_percent: Annotated[float | None, Metric("emulator's ceiling", "%", "neither", is_compared=False)] = None
    """The emulator's own AU against null storage on this host, at least, %; None when not measured."""
    au_threshold_percent: float = 90.0
    """100 x `metric.au`."""
    cpu_seconds_per_gb: float | None = None
    """CPU time of ranks and workers in `total_seconds` per 1e9 bytes read in training; None for an incomplete run."""
    steps_per_epoch: tuple[int, ...] = ()
    """Number of planned steps of each planned epoch."""

    @property
    def sustained_percent(self) -> float | None:
        """The sustained AU of the whole run; None if there is none."""
        return self.au_sustained_percent.mean if self.au_sustained_percent else None


@dataclass(frozen=True)
class PageCache:
    """Whether the bytes came from the storage or from memory."""

    from_storage_percent: Mean
    """Bytes that the storage served, in % of the bytes read; values None where the kernel does not report it."""
    served_percent: float | None = None
    """The smaller of `from_storage_percent` and the devices' bytes in % of the bytes read, each epoch 100 at most."""


@dataclass(frozen=True)
class Evaluation:
    """All evaluations together."""

    seconds: float
    samples: int


@dataclass(frozen=True, kw_only=True)
class CheckpointTiming:
    """One checkpoint, as measured on rank 0."""

    epoch: int
    block: int
    """Number of the block of steps before it."""
    bytes: int
    """Bytes of all ranks."""
    seconds: float
    stall_seconds: float | None = None
    """How long training stalled for it: less than `seconds` with `checkpoint.asynchronous`."""


@dataclass(frozen=True, kw_only=True)
class AsynchronousCheckpoints:
    """Checkpoints that were written while training went on (`checkpoint.asynchronous`)."""

    step_seconds_during: float | None
    """Mean duration of the steps of rank 0 while a checkpoint was being written, waits included."""
    step_seconds_otherwise: float | None
    """Mean duration of its other steps."""


@dataclass(frozen=True, kw_only=True)
class HostDevice:
    """A device behind the dataset's folder, as one host sees it."""

    host: str
    probe: str
    """The probe that reads its counters: block or filesystem."""
    name: str
    """The `source` of its readings."""
    model: str | None = None
    size_bytes: int | None = None
    counted: bool
    """Its bytes are counted as the dataset's. If several hosts share the device, only the first counts it."""


@dataclass(frozen=True, kw_only=True)
class TelemetrySummary:
    """What telemetry recorded."""

    devices: tuple[HostDevice, ...] = ()
    notes: tuple[str, ...] = ()
    power: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """Host -> power meter -> its mean during training, W."""


MEMORY = (Code.PAGE_CACHE, Code.NO_DATA_FROM_STORAGE)
"""Codes of findings that memory served bytes in place of the storage."""
LARGER_DATASET = "a dataset on it, larger than every cache on the way"
"""Advice where no setting bypasses the memory."""


@dataclass(frozen=True, kw_only=True)
class Summary(StorageSummary):
    """The result of a training run; complete if every planned step was measured. A rank is an accelerator.

    Of a run that was stopped early, as `dlemu size` does once a verdict is certain, only the steps taken were planned.
    """

    kind: str = "training"
    outcome: Outcome = field()
    """`pass`, `fail`, `undecided` or `no verdict`, as the exit status."""
    verdict_code: str
    """`pass`, `fail`, `undecided`, or why there is no verdict: `incomplete`, `nothing_computed`,
    `nothing_read`, `uneven_computation`, `emulator_too_slow`, `cache_served`, `too_few_steps`, `supply_not_known` or
    `host_limited`."""
    metrics: Metrics = field(default_factory=Metrics)
    loss_percent: Loss | None = None
    """Loss by reason; the parts add up to 100 - `au_whole_percent`."""
    limited_by: Limit | None = None
    """What limited the run; None without computation."""
    page_cache: PageCache | None = None
    evaluation: Evaluation | None = None
    checkpoints: tuple[CheckpointTiming, ...] = ()
    asynchronous_checkpoints: AsynchronousCheckpoints | None = None
    """None without asynchronous checkpoints."""
    each_sample_once: tuple[bool | None, ...] = ()
    """Whether each planned sample was read once, and no other, in each epoch; None for one that was cut short."""
    data_folder: str
    telemetry: TelemetrySummary | None = None
    """None if telemetry was not recorded."""

    @property
    def au(self) -> Mean | None:
        """AU over counted steps, %; None when no step was measured."""
        return self.metrics.au_percent

    def found(self, code: Code, pattern: str | None = None) -> list[dict[str, Number]]:
        """Return the numbers of the findings with a code, those that explain the limit included."""
        findings = (*(self.limited_by.findings if self.limited_by else ()), *self.findings)
        by_code = [finding.numbers for finding in findings if finding.code == code]
        return [numbers for numbers in by_code if pattern is None or numbers.get("pattern") == pattern]

    @property
    def memory(self) -> Finding | None:
        """The finding that memory served or may have served bytes, or that none were read; None if there is none."""
        return next((finding for finding in self.findings if finding.code in MEMORY), None)

    @property
    def is_from_memory(self) -> bool:
        """Whether memory served some of the bytes."""
        if self.page_cache is None or self.memory is None:
            return False
        served = self.page_cache.served_percent
        return self.memory.severity == "loud" or (served is not None and served < PARTLY_READ_PERCENT)

    @property
    def passed_from_memory(self) -> bool:
        """Whether the run passed although memory served some of the bytes, as only `metric.cached` allows."""
        return bool(self.passed) and self.is_from_memory

    @property
    def headline(self) -> str:
        """The verdict as it is shown; for a pass from memory, a text that says that the storage was not measured."""
        cache, finding, read = self.page_cache, self.memory, self.metrics.app_mb_per_second
        if not self.passed_from_memory or cache is None or finding is None:
            return self.verdict
        served = cache.from_storage_percent.mean if cache.served_percent is None else cache.served_percent
        memory_share = f"{100 - min(100.0, served):.0f} %" if served and served >= 0.5 else "all"
        busy = f"all {self.ranks} accelerators were busy. They" if self.ranks > 1 else "its accelerator was busy. It"
        return (
            f"dlemu works here: {busy} read {number(read.mean if read else 0.0)} MB/s, {memory_share} of "
            "it from memory: this is no result of your drive. Next: measure the drive with "
            f"{finding.numbers.get('would_help', LARGER_DATASET)} (metric.cached=true allowed memory)"
        )
