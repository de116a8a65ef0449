"""The measurements of a training run: step rows, telemetry, and the facts that give them their meaning."""

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
from dlemu.metrics.rows import Rows, StepTable, as_table, step_end_ns, training_start_ns
from dlemu.plan.samples import Plan
from dlemu.plan.streams import StreamPlan
from dlemu.results.exported import ExportedSteps
from dlemu.results.live import Figure, Progress, RunJournal, seconds_left
from dlemu.results.measured import MeasuredRun, RunFacts
from dlemu.telemetry import Telemetry

READ_BINS = 160  # number of intervals of `MeasuredTraining.read_mb_per_second`
RECENT_SECONDS = 10.0  # progress shows the mean rates of the steps that ended in the last 10 s
_MAX_ROWS = 2000  # progress is computed from at most 2000 of each rank's last rows


@dataclass(frozen=True, kw_only=True)
class Journal(RunJournal):
    """What rank 0 saves while the run goes on, so that it is kept if the run is killed."""

    ceiling_au_percent: float | None = None  # AU of the same loop without storage, in percent; None if not measured
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    stopped_after_steps: int | None = None  # training steps that each rank completed, if the run was stopped early
    scaling: Scaling | None = None
    """Read rates measured after the run with other numbers of readers or larger requests; None if not tried."""


@dataclass(frozen=True, kw_only=True)
class Facts(RunFacts):
    """The content of facts.json: what `analyse` needs besides step rows and telemetry."""

    kind: str = Summary.kind
    plan: Plan | None
    """Which rank reads which samples in training; None if the loader reads files as streams: then `stream_plan`."""
    stream_plan: StreamPlan | None
    num_files_eval: int  # number of files that evaluations read
    total_bytes: int  # bytes of the files that the run uses
    notes: tuple[str, ...] = ()  # caveats about the dataset and about the loader's measurements, as sentences
    batches_ahead: int  # maximum number of batches that a rank's loader holds, complete or being made
    reader_version: int  # version of dlemu's reader
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
    seconds: Floats  # times of the values since the start of training, on the host's own clock
    values: Floats


@dataclass(frozen=True, eq=False)
class MeasuredTraining(MeasuredRun):
    """The measurements of a run; `result.Run` adds the summary computed from them."""

    facts: Facts
    rows: Rows
    """The steps of all ranks, training and evaluation: a structured array after a run, a table if read from a file."""
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
        return as_table(self.rows)

    @cached_property
    def training(self) -> StepTable:
        """The training rows, ordered in the same way; empty if no training step was measured."""
        return self.ordered.of("phase", (TRAINING,))

    @cached_property
    def rank_start_ns(self) -> dict[int, int]:
        """Rank -> start of training on its clock, ns: the first step's `free_ns`, the same moment on all ranks."""
        return {rows.values("rank")[0]: int(rows["free_ns"].min()) for rows in self.training.by_rank}

    @cached_property
    def host_start_ns(self) -> dict[str, int]:
        """Host -> start of training on its clock, ns."""
        starts: dict[str, int] = {}
        journal = self.facts.journal
        for rank, start_ns in self.rank_start_ns.items():
            host = journal.hosts[journal.rank_nodes[rank]].host
            starts[host] = min(starts.get(host, start_ns), start_ns)
        return starts

    @cached_property
    def span_seconds(self) -> tuple[float, float]:
        """Start of the first step (0) and end of the last, in seconds since the start of training."""
        _, last_rows = self.ordered.block_ends
        ends = zip(last_rows["rank"].tolist(), step_end_ns(last_rows).tolist(), strict=True)
        return 0.0, max((0.0, *((end_ns - self.rank_start_ns.get(rank, 0)) / 1e9 for rank, end_ns in ends)))

    @cached_property
    def read_mb_per_second(self) -> Floats | None:
        """MB/s of all ranks' loaders in READ_BINS equal intervals of `span_seconds`; None if nothing was read."""
        rows = self.ordered
        fetched = (rows["app_bytes"] > 0) & (rows["finished_ns"] > rows["started_ns"])
        if not fetched.any():
            return None
        start_ns = training_start_ns(rows)[fetched]
        begins, ends = ((rows[name][fetched] - start_ns) / 1e9 for name in ("started_ns", "finished_ns"))
        fetches = Intervals(begins, ends, np.linspace(*self.span_seconds, READ_BINS + 1))
        return fetches.rates(rows["app_bytes"][fetched] / 1e6)

    def series(self, probe: str, *metrics: str) -> list[Series]:
        """Return the telemetry of a probe's metrics (all if none is named), sorted by host, source, metric."""
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
    """Return those measurements of a run that are exported to files in other programs' formats (DLIO's)."""
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
    """Reads the progress of a run from the step logs that its ranks are writing in `live_folder`."""

    def __init__(self, facts: Facts, live_folder: str) -> None:
        self._folder, self._ranks = live_folder, facts.ranks
        self._epoch_steps = [epoch.steps for epoch in facts.schedule]
        self._exclude = facts.workload.metric.exclude_start_steps
        self._first_ns: dict[int, int] = {}
        """Rank -> time (ns, its host's clock) at which it began to wait for its first batch."""

    def __call__(self) -> Progress | None:
        """Return the progress of the slowest rank, and rates of all ranks; None before the first step ends."""
        last_rows = {rank: self._last_rows(rank) for rank in range(self._ranks)}
        by_rank = {rank: rows for rank, rows in last_rows.items() if len(rows)}
        if not by_rank:
            return None
        logs = list(by_rank.values())
        done_steps, slowest = min((self._steps_done(rows[-1]), rank) for rank, rows in by_rank.items())
        all_steps, last_row = sum(self._epoch_steps), by_rank[slowest][-1]
        elapsed_seconds = (int(last_row["met_ns"]) - self._first_ns[slowest]) / 1e9
        epoch = min(int(last_row["epoch"]), len(self._epoch_steps))
        phase = "" if last_row["phase"] == TRAINING else "evaluation after "
        step = done_steps - sum(self._epoch_steps[: epoch - 1])
        in_epoch = [rows[(rows["epoch"] == rows["epoch"][-1]) & (rows["phase"] == TRAINING)] for rows in logs]
        recent = [rows[rows["met_ns"] > rows["met_ns"][-1] - RECENT_SECONDS * 1e9] for rows in logs]
        seconds = [max(1, int(rows["met_ns"][-1] - rows["free_ns"][0])) / 1e9 for rows in recent]

        def per_second(column: str) -> float:
            """Return the sum of a column per second of the recent steps, of all ranks together."""
            return sum(float(rows[column].sum()) / duration for rows, duration in zip(recent, seconds, strict=True))

        return Progress(
            at=f"{phase}epoch {epoch}/{len(self._epoch_steps)}, step {step}/{self._epoch_steps[epoch - 1]}",
            done=done_steps,
            total=all_steps,
            au_percent=known(au_percent(kept_rows(np.concatenate(in_epoch), self._exclude, 0))),
            mb_per_second=per_second("app_bytes") / 1e6,
            seconds_left=seconds_left(elapsed_seconds, done_steps, all_steps),
            figures=(
                Figure("samples", per_second("samples"), "/s"),
                Figure("wait", 100 * per_second("wait_ns") / 1e9 / len(recent), "%"),
            ),
        )

    def _last_rows(self, rank: int) -> StepRows:
        """Return the last rows (at most _MAX_ROWS) of a rank's log. The log is mapped, as it may be large."""
        path = os.path.join(self._folder, log_name(rank))
        if not os.path.exists(path) or os.path.getsize(path) < STEP_DTYPE.itemsize:
            return np.empty(0, STEP_DTYPE)
        rows = np.memmap(path, dtype=STEP_DTYPE, mode="r")
        # The file has room for every step of the run; `step` is 0 in the rows that are not written yet.
        end = bisect_left(range(len(rows)), True, key=lambda row: bool(rows["step"][row] == 0))
        if end:
            self._first_ns.setdefault(rank, int(rows["asked_ns"][0]))
        return np.array(rows[max(0, end - _MAX_ROWS) : end])

    def _steps_done(self, last_row: np.void) -> int:
        """Return how many training steps a rank has completed, by its last row."""
        epoch = min(int(last_row["epoch"]), len(self._epoch_steps))
        steps = int(last_row["step"]) if last_row["phase"] == TRAINING else self._epoch_steps[epoch - 1]
        return sum(self._epoch_steps[: epoch - 1]) + steps
