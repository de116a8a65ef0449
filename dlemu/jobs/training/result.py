"""A training run: its measurements, and the summary computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from datagen.engines import READER_VERSION
from datagen.formats.format_base import FORMATS, library_reads
from datagen.registry import is_built_in
from datagen.withheld import public_text, scrubbed
from dlemu.config.published import published
from dlemu.jobs.training.analyse import analyse
from dlemu.jobs.training.measured import Facts, MeasuredTraining, Series
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.summary import Summary
from dlemu.jobs.training.trainer import RunLog
from dlemu.plan.streams import StreamPlan
from dlemu.results.measured import sent_state
from dlemu.telemetry import RecorderHead


@dataclass(frozen=True, eq=False)
class Run(MeasuredTraining):
    """One training run."""

    __getstate__ = sent_state

    @cached_property
    def summary(self) -> Summary:
        """Every published number, computed from the measurements."""
        return analyse(self)

    def device_series(self, probe: str, *metrics: str) -> list[Series]:
        """Return `series` of the counted devices only: the file system's own, not those below, with the same bytes."""
        found, telemetry = self.series(probe, *metrics), self.summary.telemetry
        if telemetry is None or not telemetry.devices:
            return found
        counted = {(device.host, device.name) for device in telemetry.devices if device.counted}
        return [series for series in found if (series.host, series.source) in counted]


def make_run(job: TrainingJob, log: RunLog, failure: str | None = None) -> Run:
    """Return a job's run; `failure` is the reason if it is incomplete."""
    facts = make_facts(job, log, failure, recorders=tuple(host.head for host in log.telemetry))
    return Run(job.folder, facts, log.rows, log.telemetry)


def make_facts(
    job: TrainingJob,
    log: RunLog,
    failure: str | None,
    *,
    recorders: tuple[RecorderHead, ...],
) -> Facts:
    """Return the facts of a job's run.

    A run that was stopped early gets the settings that would have given it: `train.total_training_steps` is the number
    of steps it took.
    """
    early = log.journal.stopped_early
    if early is not None:
        job = job.cut_to(early.steps)
    plan, data_format = job.train_plan, job.workload.dataset.format
    return Facts(
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
        reader_version=READER_VERSION,
        own_library=None if is_built_in(FORMATS, data_format) else library_reads(data_format),
        loader_notes=job.loader_notes,
        journal=log.journal,
        recorders=recorders,
        failure=None if failure is None else scrubbed(failure, job.workload.storage.storage_options),
    )
