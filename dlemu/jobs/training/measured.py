"""The measurements of a training run: step rows, telemetry, and the facts that give them their meaning.

During the run, `LiveTraining` computes its progress from the step logs that its ranks write.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from dlemu.checkpoints.io_rows import SavedCheckpoint
from dlemu.jobs.training.plan import Epoch, make_schedule
from dlemu.jobs.training.steplog import EVALUATION, STEP_COLUMNS, STEP_DTYPE, TRAINING, StepRows, log_name, write_steps
from dlemu.jobs.training.summary import Summary
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.metrics.limit import Scaling
from dlemu.metrics.rates import Floats, Intervals, known
from dlemu.metrics.rows import Rows, StepTable, in_order, step_end_ns, training_start_ns
from dlemu.plan.samples import Plan
from dlemu.plan.streams import StreamPlan
from dlemu.results.exported import ExportedSteps
from dlemu.results.live import Figure, Progress, RunJournal, seconds_left
from dlemu.results.measured import MeasuredRun, RunFacts
from dlemu.telemetry import Telemetry

READ_BINS = 160
"""Number of intervals of `MeasuredTraining.read_mb_per_second`."""
RECENT_SECONDS = 10.0
"""Rates in progress are means over the steps of this time."""
_MAX_ROWS = 2000
"""Maximum number of a rank's last rows that progress is computed from."""


@dataclass(frozen=True, kw_only=True)
class Journal(RunJournal):
    """What rank 0 saves during the run, so that it outlives a killed run."""

    ceiling_au_percent: float | None = None
    """AU of the same loop without storage, in percent; None if not measured."""
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    stopped_after_steps: int | None = None
    """Training steps that each rank completed, if the run was stopped early; else None."""
    scaling: Scaling | None = None
    """Rates of other numbers of readers after the run; None if not tried."""


@dataclass(frozen=True, kw_only=True)
class Facts(RunFacts):
    """The content of facts.json: what `analyse` needs besides step rows and telemetry."""

    kind: str = Summary.kind
    plan: Plan | None
    """Which rank reads which samples in training; None if files are read as streams."""
    stream_plan: StreamPlan | None
    """The same if files are read as streams, else None."""
    num_files_eval: int
    """Number of files that evaluations read."""
    total_bytes: int
    """Bytes of the files that the run uses."""
    notes: tuple[str, ...] = ()
    """Caveats about the dataset and about the loader's measurements, as sentences."""
    batches_ahead: int
    """Maximum number of batches that a rank's loader may have ready or in the making."""
    reader_version: int
    """Version of dlemu's reader."""
    journal: Journal

    @property
    def train_plan(self) -> Plan:
        """Which rank reads which samples in training."""
        plan = self.stream_plan or self.plan
        assert plan is not None  # a run has one of the two
        return plan

    @property
    def schedule(self) -> tuple[Epoch, ...]:
        """The planned epochs with their blocks of steps."""
        return make_schedule(self.workload, self.train_plan.steps_per_epoch)


@dataclass(frozen=True)
class Series:
    """One metric of one source over time."""

    host: str
    probe: str
    source: str
    metric: str
    seconds: Floats
    """Times of the values since the start of training, on the host's own clock."""
    values: Floats


@dataclass(frozen=True, eq=False)
class MeasuredTraining(MeasuredRun):
    facts: Facts
    rows: Rows
    """The steps of all ranks, training and evaluation: a structured array, or a table if read from a folder."""
    telemetry: Telemetry = ()

    def write_rows(self) -> None:
        write_steps(self.folder, self.rows)

    @cached_property
    def steps(self) -> pa.Table:
        """The step rows as an Arrow table with the columns STEP_COLUMNS; `.to_pandas()` gives a DataFrame."""
        return pa.table({name: self.rows[name] for name in STEP_COLUMNS})

    @cached_property
    def ordered(self) -> StepTable:
        """All rows, ordered by rank, epoch and step."""
        return in_order(self.rows)

    @cached_property
    def training(self) -> StepTable:
        """The training rows; empty when no step was measured."""
        return self.ordered.of("phase", (TRAINING,))

    @cached_property
    def rank_start_ns(self) -> dict[int, int]:
        """Rank -> start of training by its clock, ns: the first step's `free_ns`, the same moment on all ranks."""
        return {own.values("rank")[0]: int(own["free_ns"].min()) for own in self.training.by_rank}

    @cached_property
    def host_start_ns(self) -> dict[str, int]:
        """Host -> start of training by its clock, ns."""
        starts: dict[str, int] = {}
        journal = self.facts.journal
        for rank, start_ns in self.rank_start_ns.items():
            host = journal.hosts[journal.rank_nodes[rank]].host
            starts[host] = min(starts.get(host, start_ns), start_ns)
        return starts

    @cached_property
    def span_seconds(self) -> tuple[float, float]:
        """Start of the first step and end of the last, in seconds since the start of training."""
        _, last = self.ordered.ends
        ends = zip(last["rank"].tolist(), step_end_ns(last).tolist(), strict=True)
        return 0.0, max((0.0, *((end - self.rank_start_ns.get(rank, 0)) / 1e9 for rank, end in ends)))

    @cached_property
    def read_mb_per_second(self) -> Floats | None:
        """MB/s of all ranks' loaders in READ_BINS equal intervals of `span_seconds`; None if nothing was read."""
        rows = self.ordered
        fetched = (rows["app_bytes"] > 0) & (rows["finished_ns"] > rows["started_ns"])
        if not fetched.any():
            return None
        since = training_start_ns(rows)[fetched]
        begins, ends = ((rows[name][fetched] - since) / 1e9 for name in ("started_ns", "finished_ns"))
        spread = Intervals(begins, ends, np.linspace(*self.span_seconds, READ_BINS + 1))
        return spread.rates(rows["app_bytes"][fetched] / 1e6)

    def series(self, probe: str, *metrics: str) -> list[Series]:
        """Return the telemetry of a probe's metrics (all metrics if none is named), by host, source and metric."""
        selected = []
        for host in self.telemetry:
            start_ns = self.host_start_ns.get(host.host)
            for key in host.series:
                if start_ns is not None and key.probe == probe and (not metrics or key.metric in metrics):
                    times, values = host.readings(*key)
                    order = np.argsort(times, kind="stable")
                    seconds = (times[order] - start_ns) / 1e9
                    selected.append(Series(host.host, probe, key.source, key.metric, seconds, values[order]))
        return sorted(selected, key=lambda series: (series.host, series.source, series.metric))


def exported(run: MeasuredTraining) -> ExportedSteps:
    """Return what files in other programs' formats (DLIO's) need of a run."""
    facts = run.facts
    return ExportedSteps(
        workload=facts.workload,
        journal=facts.journal,
        training=run.training,
        evaluation=run.ordered.of("phase", (EVALUATION,)),
        num_files_train=facts.train_plan.num_files,
        num_files_eval=facts.num_files_eval,
        saved=facts.journal.checkpoints,
    )


class LiveTraining:
    def __init__(self, facts: Facts, live_folder: str) -> None:
        self._folder, self._ranks = live_folder, facts.ranks
        self._epoch_steps = [epoch.steps for epoch in facts.schedule]
        self._exclude = facts.workload.metric.exclude_start_steps
        self._first_ns: dict[int, int] = {}
        """Rank -> start of its first step's wait."""

    def __call__(self) -> Progress | None:
        """Return the run's progress; None before the first step."""
        last_rows = {rank: self._last_rows(rank) for rank in range(self._ranks)}
        logs = {rank: rows for rank, rows in last_rows.items() if len(rows)}
        if not logs:
            return None
        done, slowest = min((self._steps_done(rows[-1]), rank) for rank, rows in logs.items())
        total, last = sum(self._epoch_steps), logs[slowest][-1]
        elapsed = (int(last["met_ns"]) - self._first_ns[slowest]) / 1e9
        epoch = min(int(last["epoch"]), len(self._epoch_steps))
        phase = "" if last["phase"] == TRAINING else "evaluation after "
        steps = done - sum(self._epoch_steps[: epoch - 1])
        epochs = [rows[(rows["epoch"] == rows["epoch"][-1]) & (rows["phase"] == TRAINING)] for rows in logs.values()]
        recent = [rows[rows["met_ns"] > rows["met_ns"][-1] - RECENT_SECONDS * 1e9] for rows in logs.values()]
        seconds = [max(1, int(rows["met_ns"][-1] - rows["free_ns"][0])) / 1e9 for rows in recent]

        def per_second(column: str) -> float:
            return sum(float(rows[column].sum()) / spent for rows, spent in zip(recent, seconds, strict=True))

        return Progress(
            at=f"{phase}epoch {epoch}/{len(self._epoch_steps)}, step {steps}/{self._epoch_steps[epoch - 1]}",
            done=done,
            total=total,
            au_percent=known(au_percent(kept_rows(np.concatenate(epochs), self._exclude, 0))),
            mb_per_second=per_second("app_bytes") / 1e6,
            seconds_left=seconds_left(elapsed, done, total),
            figures=(
                Figure("samples", per_second("samples"), "/s"),
                Figure("wait", 100 * per_second("wait_ns") / 1e9 / len(recent), "%"),
            ),
        )

    def _last_rows(self, rank: int) -> StepRows:
        """Return a rank's last rows, from few pages of the mapped file, which is as large as the whole run."""
        path = os.path.join(self._folder, log_name(rank))
        if not os.path.exists(path) or os.path.getsize(path) < STEP_DTYPE.itemsize:
            return np.empty(0, STEP_DTYPE)
        rows = np.memmap(path, dtype=STEP_DTYPE, mode="r")
        written = bisect_left(range(len(rows)), True, key=lambda row: bool(rows["step"][row] == 0))
        if written:
            self._first_ns.setdefault(rank, int(rows["asked_ns"][0]))
        return np.array(rows[max(0, written - _MAX_ROWS) : written])

    def _steps_done(self, last: np.void) -> int:
        """Return how many training steps a rank has completed, by its last row."""
        epoch = min(int(last["epoch"]), len(self._epoch_steps))
        steps = int(last["step"]) if last["phase"] == TRAINING else self._epoch_steps[epoch - 1]
        return sum(self._epoch_steps[: epoch - 1]) + steps
