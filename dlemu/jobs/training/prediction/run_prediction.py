"""`dlemu predict` for training: reads the settings, calibrates the storage, predicts and saves predict.json."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import psutil

from datagen.atomic import write_text
from datagen.errors import UserError
from datagen.inspection import inspect
from datagen.spec import refuse
from dlemu.config import check_runnable, datagen_command, load, load_received, to_yaml
from dlemu.config.overrides import given_keys
from dlemu.config.schema import Workload
from dlemu.jobs.training.evict import treatment_of
from dlemu.jobs.training.pattern import MAX_SECONDS, loader_costs, measure_levels
from dlemu.jobs.training.plan import make_job
from dlemu.jobs.training.prediction.calibration import Calibration, calibrate_from_drive, given_speed, max_mb_per_second
from dlemu.jobs.training.prediction.from_reads import calibrate_from_levels, calibrate_from_run
from dlemu.jobs.training.prediction.from_times import ForeignRun, calibrate_from_times
from dlemu.jobs.training.prediction.make_prediction import MAX_ACCELERATORS, predict
from dlemu.jobs.training.prediction.prediction import PREDICT, Prediction
from dlemu.jobs.training.result import read_run
from dlemu.machine.cgroup_limits import cpu_limit
from dlemu.metrics.demand import row_group_reads
from dlemu.metrics.verdict import HOST_LIMITS
from dlemu.results import CONFIG
from dlemu.results.answer_files import decode_untrusted, read_answer, save_answer, to_json
from dlemu.results.drive import no_speed_left
from dlemu.results.wording import count
from dlemu.runner.events import OnEvent, PartMeasured, ignore
from dlemu.runner.prediction_request import PredictionRequest
from dlemu.runner.run_folder import check_new, new_folder

CALIBRATION = "calibration.json"  # file of a prediction with its `Calibration`, for `dlemu predict --from` its folder
ReadForeign = Callable[[str], ForeignRun | None]  # reads another benchmark's run from a folder; None if there is none


def run_prediction(source: Sequence[str] | Workload, request: PredictionRequest) -> tuple[Prediction, str, Workload]:
    """Predict for overrides or a workload; return the prediction, its folder and the workload. Raises UserError.

    The number of accelerators is `ranks`, if overrides name it or a workload has more than 1; else it is searched for.
    A storage that the request does not describe is probed. With a speed alone, files are assumed as needed.
    """
    known = None if request.from_folder is None else read_known(request.from_folder, request.read_foreign)
    if isinstance(source, Workload):
        workload, names_files = source, True
        ranks = source.ranks if source.ranks > 1 else None
    else:
        workload = load(source, config_dir=request.config_dir, base=None if known is None else known.workload)
        ranks = workload.ranks if any(one.lstrip("+").startswith("ranks=") for one in source) else None
        names_files = "dataset.num_files_train" in given_keys(source)
    check_runnable(workload)
    refuse(_not_modelled(workload, request, known))
    folder = workload.output.folder or new_folder(workload.results_name, "predict-")
    check_new(folder)
    has_files = names_files or workload.dataset.source == "folder"
    calibration = _calibrate(workload, request, known, ranks)
    answer = predict(
        workload,
        calibration,
        ranks=ranks,
        hosts=request.hosts or (known.hosts if known else 1),
        most=request.most or MAX_ACCELERATORS,
        assumes_files=known is None and request.describes_storage and not has_files,
    )
    write_text(folder, CONFIG, to_yaml(workload))
    write_text(folder, CALIBRATION, to_json(calibration))
    save_answer(folder, PREDICT, answer)
    return answer, folder, workload


def _calibrate(workload: Workload, request: PredictionRequest, known: Known | None, ranks: int | None) -> Calibration:
    """Return the storage's calibration, probed if nothing describes it, with other jobs and hosts as requested."""
    if request.mb_per_second is not None:
        calibration = given_speed(request.mb_per_second, cores=usable_cores(), bytes_factor=row_group_reads(workload))
    elif request.drive is not None:
        calibration = calibrate_from_drive(request.drive, workload, cores=usable_cores())
    elif known is not None:
        repeats = row_group_reads(workload) / row_group_reads(known.workload)  # of row groups: other batches or readers
        calibration = replace(known.calibration, bytes_factor=repeats * known.calibration.bytes_factor)
    else:
        if request.make is not None:
            request.make(workload)
        readers = (ranks or 0) * max(1, workload.reader.read_threads)
        calibration = calibrate_by_probe(workload, readers=readers, on_event=request.on_event)
        if (request.hosts or 1) > 1:  # a storage that hosts share may give more than this one can take
            calibration = replace(calibration, saturated=False)
    if request.others_mb_per_second >= max_mb_per_second(calibration.curve):
        raise no_speed_left(request.others_mb_per_second, max_mb_per_second(calibration.curve))
    calibration = replace(calibration, others_mb_per_second=request.others_mb_per_second)
    if request.host_cores is None:
        return calibration
    # The programs that kept cores busy in the probe run on this host, not on those to predict for.
    source = f"{calibration.source}, for hosts with {count(request.host_cores, 'core')}"
    return replace(calibration, source=source, cores=float(request.host_cores), busy_cores=0.0)


# Settings whose effect on reads only a measurement shows: they must be the same as in the run predicted from
_SAME_AS_MEASURED: tuple[str, ...] = (
    "reader.engine", "reader.decode", "reader.verify", "reader.odirect", "reader.transfer_size", "reader.range_bytes",
    "reader.io_depth", "reader.pin_memory", "reader.tensors", "reader.tensor_bytes",
    "dataset.compression", "dataset.compressibility", "metric.cached",
)  # fmt: skip
# Further such settings with `metric.cached`: they change the share of the reads that memory serves
_SAME_IF_CACHED: tuple[str, ...] = ("reader.evict_page_cache", "train.epochs")
# Settings that must be the same as in any source; a speed or a probe has the defaults
_SAME_AS_SOURCE: tuple[str, ...] = ("reader.page_cache_percent",)
# Settings that must have their defaults where only the storage's speed is given
_DEFAULT_WITH_SPEED: tuple[str, ...] = (
    "reader.decode", "reader.verify", "reader.pin_memory", "reader.tensors", "dataset.compression", "metric.cached",
)  # fmt: skip
# Settings that the model does not simulate: they must have their defaults
_DEFAULT_IN_MODEL = ("train.compute", "checkpoint.asynchronous")


def _not_modelled(workload: Workload, request: PredictionRequest, known: Known | None) -> Iterator[str]:
    """Yield a problem for each setting that affects runs in a way that neither the model nor the source knows."""
    reader, names = workload.reader, _SAME_AS_SOURCE
    measured = Workload()  # the defaults, unless a run was measured
    if known is not None:
        source, measured = request.from_folder, known.workload
        names += _SAME_AS_MEASURED + (_SAME_IF_CACHED if workload.metric.cached else ())
    elif request.describes_storage:
        source = "a speed"
        names += _DEFAULT_WITH_SPEED
    else:
        source = "a probe"
    harmless = {
        "metric.cached": reader.odirect or reader.evict_page_cache == "epochs",
        "reader.tensors": workload.recorded.version,  # the recording has their cost
        "checkpoint.asynchronous": not workload.workflow.checkpoint,
    }
    required = {name: attrgetter(name)(Workload()) for name in _DEFAULT_IN_MODEL}
    required |= {name: attrgetter(name)(measured) for name in names}
    for name, required_value in required.items():
        value = attrgetter(name)(workload)
        if value != required_value and not harmless.get(name):
            yield (
                f"{name} is {str(value).lower()}, and neither the model nor {source} knows what that changes: wanted "
                f"{str(required_value).lower()}, or a measurement with it (`dlemu train`)"
            )


def calibrate_by_probe(
    workload: Workload, *, readers: int = 0, most_seconds: float = MAX_SECONDS, on_event: OnEvent = ignore
) -> Calibration:
    """Measure the storage with the workload's reads, most precisely with `readers` (0: the fewest at full speed)."""
    dataset = inspect(
        workload.dataset,
        command_hint=lambda: (
            f"{datagen_command(workload)} (or add --make here, --from RESULTS of a run, or --mb-per-second X)"
        ),
        storage=workload.storage_spec,
    )
    job = make_job(workload, 1, dataset, folder=os.devnull)
    evicts = treatment_of(workload, dataset.total_bytes) in ("evicted", "large")
    began, others_before = time.monotonic(), _others_cpu_seconds()
    levels = []
    for level in measure_levels(job, evicts=evicts, repeat=readers, most_seconds=most_seconds):
        on_event(PartMeasured(level, f"{count(level.readers, 'reader')} {level.mb_per_second:,.1f} MB/s"))
        levels.append(level)
    return calibrate_from_levels(
        job,
        levels,
        loader_costs(job),
        cores=usable_cores(),
        busy_cores=max(0.0, (_others_cpu_seconds() - others_before) / (time.monotonic() - began)),
    )


def _others_cpu_seconds() -> float:
    """Return the CPU seconds so far of other programs on the cores that this process, with its children, may use."""
    cores, own = psutil.cpu_times(percpu=True), os.times()
    busy = 0.0
    for core in [cores[number] for number in os.sched_getaffinity(0) if number < len(cores)]:
        busy += sum(core) - core.idle - getattr(core, "iowait", 0.0) - getattr(core, "guest", 0.0)
    share = usable_cores() / len(os.sched_getaffinity(0))  # of each, by the control group's limit
    return share * (busy - sum(own[:4]))  # user and system time, of the process and of its children


@dataclass(frozen=True, kw_only=True)
class Known:
    """The storage's calibration and the settings, from the folder of a run or of an earlier prediction."""

    calibration: Calibration
    workload: Workload
    hosts: int = 1


def read_known(folder: str, read_foreign: ReadForeign | None = None) -> Known:
    """Return calibration and settings from the folder of a run or an earlier prediction; raises UserError."""
    if (answer := read_answer(folder, PREDICT, Prediction)) is not None:
        calibration = decode_untrusted(os.path.join(folder, CALIBRATION), Calibration)
        workload = load_received(os.path.join(folder, CONFIG))
        return Known(calibration=calibration, workload=workload, hosts=answer.question.hosts)
    if read_foreign is not None and (foreign := read_foreign(folder)) is not None:
        return Known(calibration=calibrate_from_times(foreign), workload=foreign.workload)
    run = read_run(folder)
    if run.summary.is_from_memory and not run.facts.workload.metric.cached:
        problem = "the run of --from measured memory, not storage, or in part"
        raise UserError(f"{problem}: wanted one past the page cache, as with reader.evict_page_cache=epochs")
    calibration, limit = calibrate_from_run(run), run.summary.limited_by
    if limit is not None and limit.what in HOST_LIMITS:  # its readers could not reach the storage's limit
        calibration = replace(calibration, saturated=False)
    return Known(calibration=calibration, workload=run.facts.workload, hosts=max(1, len(run.facts.journal.hosts)))


def usable_cores() -> float:
    """Return the cores that this process may use, by its affinity and its control group's limit."""
    return min(float(len(os.sched_getaffinity(0))), cpu_limit() or float("inf"))
