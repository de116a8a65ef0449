"""What was measured: step rows, telemetry, and the facts without which they mean nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from datagen.formats.format_base import FORMATS, LibraryReads, library_reads
from datagen.registry import is_built_in
from datagen.withheld import public_text, scrubbed
from dlemu.config.published import published
from dlemu.config.schema import Workload
from dlemu.emulator.job import Job
from dlemu.emulator.journal import Journal
from dlemu.emulator.schedule import Epoch, make_schedule
from dlemu.emulator.steplog import STEP_COLUMNS, TRAINING
from dlemu.emulator.trainer import RunLog
from dlemu.metrics.over_time import Floats, Intervals
from dlemu.metrics.rows import Rows, StepTable, chunks, in_order
from dlemu.plan.samples import Plan
from dlemu.plan.streams import StreamPlan
from dlemu.results.analyse import analyse
from dlemu.results.summary import Summary
from dlemu.telemetry import RecorderHead, Telemetry, trace_to_table

FACTS_VERSION = 1
READ_BINS = 320
"""Parts of a run's time whose throughput is told apart."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that `analyse` needs beside step rows and readings; facts.json."""

    facts_version: int = FACTS_VERSION
    workload: Workload
    ranks: int
    seed: int
    """Of the shuffles and draws."""
    started_at: str
    """ISO 8601 with zone."""
    plan: Plan | None
    """Who reads which samples in training; None where files are read as streams."""
    stream_plan: StreamPlan | None
    num_files_train: int
    """Files in use; so `num_files_eval`."""
    num_files_eval: int
    num_samples_per_file: int
    total_bytes: int
    """Of the dataset's files in use."""
    dataset_notes: tuple[str, ...] = ()
    """What is to be known of the dataset, as sentences."""
    batches_ahead: int
    """Most batches that a rank's loader has ready or under way."""
    own_library: LibraryReads | None = None
    """How the library of a user's own format reads, by its module, which nobody imports to read this; else None."""
    loader_notes: tuple[str, ...] = ()
    """What the loader says of its own measurement, as sentences."""
    journal: Journal
    """What rank 0 noted while the run went on."""
    recorders: tuple[RecorderHead, ...] = ()
    """Of each host that was watched, in node order."""
    failure: str | None = None
    """Why the run is incomplete."""

    @property
    def train_plan(self) -> Plan:
        """Who reads which samples in training."""
        plan = self.stream_plan or self.plan
        assert plan is not None  # one of the two is always there
        return plan

    @property
    def schedule(self) -> tuple[Epoch, ...]:
        """What was to happen when."""
        return make_schedule(self.workload, self.train_plan.steps_per_epoch)


@dataclass(frozen=True)
class Series:
    """One metric of one source over time."""

    host: str
    probe: str
    source: str
    metric: str
    seconds: Floats
    """Since the start of training, on the host's own clock."""
    values: Floats


@dataclass(frozen=True, eq=False)
class Run:
    """One training run."""

    folder: str
    """Where its files lie."""
    facts: Facts
    rows: Rows
    """The step logs of all ranks, training and evaluation: a structured array, or a table where they were read."""
    telemetry: Telemetry = ()
    """What the recorders of the hosts read, in node order."""

    @cached_property
    def summary(self) -> Summary:
        """Every published number, computed from the rest."""
        return analyse(self)

    @cached_property
    def steps(self) -> pa.Table:
        """The step rows as an Arrow table, a column each of STEP_COLUMNS; `.to_pandas()` for pandas."""
        return pa.table({name: self.rows[name] for name in STEP_COLUMNS})

    @cached_property
    def ordered(self) -> StepTable:
        """All rows in the order of ranks, epochs and steps."""
        return in_order(self.rows)

    @cached_property
    def training(self) -> StepTable:
        """The training rows; empty when no step was measured."""
        return self.ordered.of("phase", (TRAINING,))

    @cached_property
    def rank_start_ns(self) -> dict[int, int]:
        """When training began, by each rank's clock: its first step is free at the same moment on all of them."""
        if not len(self.training):
            return {}
        ranks, (step, free_ns), _ = self.training.by_epoch[0].ends("step", "free_ns")
        first = step == step.min()
        return dict(zip(ranks[first].tolist(), free_ns[first].tolist(), strict=True))

    @cached_property
    def host_start_ns(self) -> dict[str, int]:
        """When training began, by each host's clock."""
        starts: dict[str, int] = {}
        journal = self.facts.journal
        for rank, start_ns in self.rank_start_ns.items():
            host = journal.hosts[journal.rank_nodes[rank]].host
            starts[host] = min(starts.get(host, start_ns), start_ns)
        return starts

    @cached_property
    def span_seconds(self) -> tuple[float, float]:
        """When the first step began and the last one ended, since the start of training."""
        latest = 0.0
        for part in chunks(self.ordered):
            ends = part["free_ns"] + part["wait_ns"] + part["compute_ns"] + part["sync_ns"]
            latest = max(latest, (int(ends.max()) - self.rank_start_ns.get(part.values("rank")[0], 0)) / 1e9)
        return 0.0, latest

    @cached_property
    def read_mb_per_second(self) -> Floats | None:
        """What the loaders of all ranks read in each of READ_BINS equal parts of `span_seconds`; None for nothing."""
        edges, total, is_any = np.linspace(*self.span_seconds, READ_BINS + 1), np.zeros(READ_BINS), False
        for part in chunks(self.ordered):
            fetched = part[(part["app_bytes"] > 0) & (part.since_free("finished_ns") > part.since_free("started_ns"))]
            if len(fetched):
                begins, ends = self.seconds("started_ns", fetched), self.seconds("finished_ns", fetched)
                total += Intervals(begins, ends, edges).rates(fetched["app_bytes"] / 1e6)
                is_any = True
        return total if is_any else None

    def seconds(self, column: str, rows: StepTable) -> Floats:
        """Return a column of stamps as seconds since the start of training, each rank by its own clock."""
        starts = self.rank_start_ns
        parts = [(part[column] - starts.get(part.values("rank")[0], 0)) / 1e9 for part in rows.by_rank]
        return np.concatenate(parts) if parts else np.empty(0)

    def series(self, probe: str, *metrics: str) -> list[Series]:
        """Return the telemetry of a probe's metrics (all without a name), by host, source and metric."""
        return [one for one in self._series if one.probe == probe and (not metrics or one.metric in metrics)]

    def device_series(self, probe: str, *metrics: str) -> list[Series]:
        """Return the same of those devices alone whose bytes are the dataset's: each request counted once."""
        found, told = self.series(probe, *metrics), self.summary.telemetry
        if told is None or not told.devices:
            return found
        counted = {(device.host, device.name) for device in told.devices if device.counted}
        return [one for one in found if (one.host, one.source) in counted]

    @cached_property
    def _series(self) -> tuple[Series, ...]:
        found = []
        for host in self.telemetry:
            if host.host not in self.host_start_ns:
                continue
            start_ns = self.host_start_ns[host.host]
            for key in host.series:
                times, values = host.readings(*key)
                order = np.argsort(times, kind="stable")
                seconds = (times[order] - start_ns) / 1e9
                found.append(Series(host.host, key.probe, key.source, key.metric, seconds, values[order]))
        return tuple(sorted(found, key=lambda one: (one.host, one.probe, one.source, one.metric)))

    @cached_property
    def block_trace(self) -> pa.Table | None:
        """Histograms of the devices' requests, a row a bin with its host; None when no host traced."""
        return trace_to_table(self.telemetry)


def make_run(job: Job, log: RunLog, failure: str | None = None) -> Run:
    """Return the run that a job became; `failure` says why it is incomplete."""
    facts = make_facts(job, log, failure, recorders=tuple(host.head for host in log.telemetry))
    return Run(job.folder, facts, log.rows, log.telemetry)


def make_facts(
    job: Job,
    log: RunLog,
    failure: str | None,
    *,
    facts_version: int = FACTS_VERSION,
    recorders: tuple[RecorderHead, ...],
) -> Facts:
    """Return the facts of a job's run.

    One that was asked to end early is the run it became: `train.total_training_steps` as many as it took.
    """
    early = log.journal.stopped_early
    if early is not None:
        job = job.cut_to(early.steps)
    plan, data_format = job.train_plan, job.workload.dataset.format
    return Facts(
        facts_version=facts_version,
        workload=published(job.workload),
        ranks=job.ranks,
        seed=job.seed,
        started_at=job.started_at,
        plan=None if isinstance(plan, StreamPlan) else plan,
        stream_plan=plan if isinstance(plan, StreamPlan) else None,
        num_files_train=job.found.train.num_files,
        num_files_eval=job.found.valid.num_files if job.found.valid else 0,
        num_samples_per_file=job.found.train.num_samples_per_file,
        total_bytes=job.found.total_bytes,
        dataset_notes=tuple(map(public_text, job.found.notes)),
        batches_ahead=job.batches_ahead,
        own_library=None if is_built_in(FORMATS, data_format) else library_reads(data_format),
        loader_notes=job.loader_notes,
        journal=log.journal,
        recorders=recorders,
        failure=None if failure is None else scrubbed(failure, job.workload.storage.storage_options),
    )
