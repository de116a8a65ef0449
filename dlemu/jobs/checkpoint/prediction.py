"""`dlemu predict` for checkpoints: how long they take on a storage, and what share of training's time they cost.

The time of a checkpoint is the bytes of all ranks, divided by the MB/s that the storage delivers to all of them
together: `run_prediction` finds these, and `predict` applies the formula. docs/prediction.md has formulas and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datagen.atomic import write_text
from datagen.errors import UserError
from dlemu.checkpoints.checkpoint_plan import CheckpointPlan, plan_checkpoint
from dlemu.checkpoints.read_files import read_pattern
from dlemu.config import load, to_yaml
from dlemu.config.schema import Checkpoint, Workload
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.measured import MEASURED_WITH
from dlemu.jobs.checkpoint.run import CHECKPOINTS
from dlemu.jobs.checkpoint.summary import (
    Caveat,
    CheckpointCost,
    PhaseSummary,
    snapshot_seconds,
    training_cost,
)
from dlemu.jobs.checkpoint.wording import cost_line, rounded
from dlemu.metrics.cache import PARTLY_READ_PERCENT
from dlemu.metrics.checkpoint_rates import GIB
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.t_interval import half_width
from dlemu.metrics.verdict import HOST_LIMITS
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.units import size
from dlemu.results import CONFIG
from dlemu.results.answer_files import save_answer
from dlemu.results.drive import (
    OUTSIDE,
    READ_AHEAD_BYTES,
    READ_AHEAD_REQUESTS,
    SPEED_PERCENT,
    Rates,
    no_speed_left,
    others_phrase,
    per_second,
    read_drive,
)
from dlemu.results.figures import Value
from dlemu.results.kinds import Parts
from dlemu.results.wording import Wording, count, sentences
from dlemu.runner.prediction_request import Predicted, PredictionRequest
from dlemu.runner.run_folder import check_new, new_folder

PREDICTION = "predict_checkpoints.json"
_MIN_SPEED_SHARE = 0.01  # lowest speed in a prediction interval, as a share of the predicted one: keeps it above 0


@dataclass(frozen=True, kw_only=True)
class PredictedPhase:
    """The predicted time to write or read one checkpoint."""

    seconds: float
    """Time until the slowest rank is done."""
    seconds_interval: tuple[float, float]
    """Prediction interval of `seconds`, at 90 % or more if the storage performs as described."""


@dataclass(frozen=True, kw_only=True)
class CheckpointPrediction(CheckpointCost, Predicted):
    """The prediction for one workload and storage."""

    workload: str
    ranks: int
    """Ranks that the run would emulate."""
    write: PredictedPhase | None
    """Null if the storage's write speed is unknown."""
    read: PredictedPhase | None
    """Null if the storage's read speed is unknown."""


WATCHDOG_SECONDS = 600.0
"""NCCL's watchdog ends a job whose ranks wait longer for one of them (PyTorch's default for a process group)."""
WATCHDOG = "longer_than_watchdog"  # code of a finding that only predictions have
FINDINGS: Wording[str] = {
    WATCHDOG: "training waits {seconds:,.0f} s for a checkpoint, and NCCL's watchdog ends a job after "
    "{watchdog_seconds:g}: raise its timeout (init_process_group), or save asynchronously or less often",
    OUTSIDE: "measured with {measured_ranks:count rank}, predicted for {ranks}: the storage is assumed to "
    "deliver the same to all of them together",
    Code.STORAGE_NOT_STEADY: "the storage had not reached a steady speed of writing in that run: a longer one may be "
    "slower",
    Code.EMULATOR_CEILING: "the {limit} limited how fast that run {verb}: the storage may be faster",
    Code.PAGE_CACHE: "only {from_storage_percent:.0f} % of what that run read came from the storage, so its speed of "
    "reading says nothing of it",
}


def run_prediction(
    source: Sequence[str] | Workload, request: PredictionRequest
) -> tuple[CheckpointPrediction, str, Workload]:
    """Predict the checkpoints of a workload, given as overrides or loaded; return prediction, folder and workload.

    A checkpoint run in `request.from_folder` provides the throughput and default settings. Raises UserError.
    """
    if any(option is not None for option in (request.make, request.most, request.hosts, request.host_cores)):
        raise UserError("--make, --most, --hosts and --host-cores are for training only: leave them out")
    measured = None if request.from_folder is None else CHECKPOINTS.read(request.from_folder)
    if isinstance(source, Workload):
        workload = CHECKPOINTS.complete(source)
    else:
        base = None if measured is None else measured.facts.workload
        workload = CHECKPOINTS.complete(load(source, config_dir=request.config_dir, base=base))
    plan = plan_checkpoint(workload.model, workload.checkpoint, workload.ranks)
    if measured is not None:
        storage = _measured_storage(measured, workload.checkpoint, len(plan.ranks))
    elif request.drive is not None:
        storage = _storage_of_drive(read_drive(request.drive), workload.checkpoint, len(plan.ranks))
    else:
        assert request.mb_per_second is not None  # a request describes the storage in one of these three ways
        stated = throughput(request.mb_per_second)
        storage = KnownStorage(f"a storage of {request.mb_per_second:,g} MB/s", writes=stated, reads=stated)
    folder = workload.output.folder or new_folder(workload.model.name, "predict-")
    check_new(folder)
    answer = predict(workload, plan, storage, others_mb_per_second=request.others_mb_per_second)
    write_text(folder, CONFIG, to_yaml(workload))
    save_answer(folder, PREDICTION, answer)
    return answer, folder, workload


def throughput(mb_per_second: float, percent: float = SPEED_PERCENT) -> Value:
    """Return a storage's throughput for all ranks together, MB/s, with a half width of `percent` % of it."""
    return Value(mb_per_second, percent / 100 * mb_per_second)


@dataclass(frozen=True)
class KnownStorage:
    """The storage to predict for."""

    source: str  # the origin of the throughputs, as a phrase
    writes: Value | None  # `throughput` of writing; None if unknown
    reads: Value | None
    findings: tuple[Finding, ...] = ()  # warnings about the throughputs


def _storage_of_drive(drive: Rates, settings: Checkpoint, ranks: int) -> KnownStorage:
    """Return the storage with the throughputs that `ranks` ranks get from a drive.

    With O_DIRECT each thread has one request of `transfer_size` in flight. Through the page cache, the kernel writes at
    the drive's highest rate, and reads ahead in requests of its own size.
    """
    pattern = read_pattern(settings)
    writes = reads = None
    if drive.writes and settings.odirect:
        requests_per_second = per_second(drive.writes, settings.transfer_size, ranks * settings.writers)
        writes = throughput(settings.transfer_size * requests_per_second / 1e6)
    elif drive.writes:
        writes = throughput(max(row.size_bytes * row.per_second / 1e6 for row in drive.writes))
    if drive.rates:
        request_bytes, in_flight = pattern.piece_bytes, ranks * pattern.threads
        if not settings.odirect:
            request_bytes = READ_AHEAD_BYTES
            in_flight *= READ_AHEAD_REQUESTS if pattern.reads_ahead else 1
        reads = throughput(request_bytes * per_second(drive.rates, request_bytes, in_flight) / 1e6)
    return KnownStorage(drive.source, writes, reads)


def _measured_storage(run: CheckpointRun, settings: Checkpoint, ranks: int) -> KnownStorage:
    """Return the storage of a run; UserError if it measured none, memory, or another way than with `settings`."""

    def mean_throughput(phase: PhaseSummary | None) -> Value | None:
        """Average the seconds per GiB, not the rates, because the prediction is about seconds."""
        rates = [times.slowest_gib_per_second for times in phase.checkpoints] if phase is not None else []
        seconds_per_gib = [1 / gib_per_second for gib_per_second in rates if gib_per_second]
        if not seconds_per_gib:
            return None
        mean = float(np.mean(seconds_per_gib))
        percent = SPEED_PERCENT
        if len(seconds_per_gib) > 1:
            deviation = float(np.std(seconds_per_gib, ddof=1))
            percent = max(percent, 100 * half_width(deviation, len(seconds_per_gib), 0.95) / mean)
        return throughput(GIB / mean / 1e6, percent)

    measured, used = run.summary, run.facts.workload.checkpoint
    if {finding.code for finding in measured.findings} & {Code.NO_DATA_FROM_STORAGE, Caveat.NO_FSYNC}:
        raise UserError("the run of --from measured memory: wanted one on a drive, with checkpoint.fsync=true")
    if changed := [name for name in MEASURED_WITH if getattr(settings, name) != getattr(used, name)]:
        settings_text = ", ".join(f"checkpoint.{name}={getattr(used, name)!s}".lower() for name in changed)
        raise UserError(f"the run of --from was measured with {settings_text}: leave them, or run `dlemu checkpoint`")
    write, read = measured.write, measured.read
    writes, reads = mean_throughput(write), mean_throughput(read)
    if writes is None and reads is None:
        raise UserError("the run of --from completed no checkpoint: wanted one that wrote or read some")
    findings = []
    if measured.ranks != ranks:
        findings.append(Finding.of(OUTSIDE, "caution", measured_ranks=measured.ranks, ranks=ranks))
    if write is not None and write.steady is False:
        findings.append(Finding(Code.STORAGE_NOT_STEADY, "caution"))
    for verb, phase in (("wrote", write), ("read", read)):
        if phase is not None and phase.limited_by is not None and phase.limited_by.what in HOST_LIMITS:
            findings.append(Finding.of(Code.EMULATOR_CEILING, "caution", verb=verb, limit=phase.limited_by.what))
    from_storage = None if read is None else read.from_storage_percent
    if reads is not None and from_storage is not None and from_storage < PARTLY_READ_PERCENT:
        findings.append(Finding.of(Code.PAGE_CACHE, "loud", from_storage_percent=from_storage))
        reads = None
    source = f"a run of {measured.workload} with {count(measured.ranks, 'rank')}"
    return KnownStorage(source, writes, reads, tuple(findings))


def predict(
    workload: Workload, plan: CheckpointPlan, storage: KnownStorage, *, others_mb_per_second: float = 0.0
) -> CheckpointPrediction:
    """Return the prediction for ranks that share what other jobs leave of the throughput; UserError if that is none."""
    settings, sizes = workload.checkpoint, plan.sizes

    def predict_phase(storage_speed: Value | None) -> PredictedPhase | None:
        if storage_speed is None:
            return None
        mb_per_second = storage_speed.mean - others_mb_per_second
        if mb_per_second <= 0:
            raise no_speed_left(others_mb_per_second, storage_speed.mean)
        seconds = sizes.bytes / (mb_per_second * 1e6)
        error = (storage_speed.half_width or 0.0) / mb_per_second  # relative; above 1 if others take nearly everything
        interval = seconds / (1 + error), seconds / max(1 - error, _MIN_SPEED_SHARE)
        return PredictedPhase(seconds=seconds, seconds_interval=interval)

    write, read = predict_phase(storage.writes), predict_phase(storage.reads)
    training = None
    findings = storage.findings
    if write is not None:
        stall, drain = write.seconds, 0.0
        if settings.asynchronous:
            stall, drain = snapshot_seconds(settings, sizes.largest_rank_bytes), write.seconds
        waited = stall + max(0.0, drain - settings.interval_seconds)  # for the checkpoint before, too
        if waited > WATCHDOG_SECONDS:
            too_long = Finding.of(WATCHDOG, "caution", seconds=waited, watchdog_seconds=WATCHDOG_SECONDS)
            findings = (too_long, *findings)
        training = training_cost(settings, sizes.ranks_of_job, stall, 0.0 if read is None else read.seconds, drain)
    return CheckpointPrediction(
        workload=workload.model.name,
        source=storage.source + others_phrase(others_mb_per_second),
        ranks=len(plan.ranks),
        bytes=sizes.bytes,
        write=write,
        read=read,
        training=training,
        findings=findings,
        issues=sentences(findings, FINDINGS),
    )


def _screen(answer: CheckpointPrediction, folder: str) -> Screen:
    title = f"{answer.workload}: predicted, checkpoints of {size(answer.bytes)} by {count(answer.ranks, 'rank')}"
    lines = []
    for label, phase, unknown in (
        ("writes", answer.write, "give a data sheet with `writes`, a probe with --rw write, or a run that wrote"),
        ("reads", answer.read, "so recovery is not predicted"),
    ):
        if phase is None:
            lines.append(Said(label, f"not known of this storage: {unknown}"))
            continue
        low, high = (rounded(seconds, 3) for seconds in phase.seconds_interval)
        duration = f"{rounded(phase.seconds, 3)} s a checkpoint ({low} to {high})"
        lines.append(Said(label, f"{duration}, at {rate(answer.bytes / phase.seconds / 1e6)}", tone="strong"))
    if answer.training is not None:
        lines.append(Said("costs", cost_line(answer.training)))
    lines.append(Said("from", answer.source))
    return Screen(title=title, lines=lines, notes=answer.issues, folder=folder)


PARTS = Parts(answer_type=CheckpointPrediction, screen=_screen)
