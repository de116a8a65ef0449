"""What was measured: step rows, telemetry, and the facts without which they mean nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from datagen.formats.format_base import LibraryReads
from dlemu.jobs.training.journal import Journal
from dlemu.jobs.training.schedule import Epoch, make_schedule
from dlemu.jobs.training.step_table import write_steps
from dlemu.jobs.training.steplog import EVALUATION, STEP_COLUMNS, TRAINING
from dlemu.jobs.training.summary import Summary
from dlemu.metrics.over_time import Floats, Intervals
from dlemu.metrics.rows import Rows, StepTable, chunks, in_order
from dlemu.plan.samples import Plan
from dlemu.plan.streams import StreamPlan
from dlemu.results.exported import ExportedSteps
from dlemu.results.measured import RunFacts
from dlemu.telemetry import Telemetry, trace_to_table

READ_BINS = 320
"""Parts of a run's time whose throughput is distinguished."""


@dataclass(frozen=True, kw_only=True)
class Facts(RunFacts):
    """All that `analyse` needs beside step rows and readings; facts.json."""

    kind: str = Summary.kind
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
    reader_version: int = 1
    """Of dlemu's reader; 1 in runs of before it had a number, for which its calls are not reported again."""
    loader_notes: tuple[str, ...] = ()
    """What the loader says of its own measurement, as sentences."""
    journal: Journal

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
class MeasuredTraining:
    """What a training run measured."""

    folder: str
    """Where its files lie."""
    facts: Facts
    rows: Rows
    """The step logs of all ranks, training and evaluation: a structured array, or a table where they were read."""
    telemetry: Telemetry = ()
    """What the recorders of the hosts read, in node order."""

    def write_rows(self) -> None:
        """Write steps.parquet; raises SpaceError."""
        write_steps(self.folder, self.rows)

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


def exported(run: MeasuredTraining) -> ExportedSteps:
    """Return a run as other programs know it."""
    facts = run.facts
    return ExportedSteps(
        workload=facts.workload,
        journal=facts.journal,
        training=run.training,
        evaluation=run.ordered.of("phase", (EVALUATION,)),
        num_files_train=facts.num_files_train,
        num_files_eval=facts.num_files_eval,
        saved=facts.journal.checkpoints,
    )
