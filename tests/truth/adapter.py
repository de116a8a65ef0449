"""Feeds the frozen runs to the functions that compute numbers, and translates what these return.

This is the one file of this folder that may change: when the inside is rebuilt, it is translated anew here. What a
frozen run holds, and how its numbers are named, stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, get_args

import numpy as np
import pytest

from datagen.engines import READER_VERSION
from datagen.storage._request_counts import BINS, COUNTERS, FINE, GROWTH, INDEX, LOWEST_US, RequestCounts, waits_ms
from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.io_rows import IO_DTYPE, READ, WRITE, SavedCheckpoint
from dlemu.config import load
from dlemu.config.overrides import override
from dlemu.config.schema import Workload
from dlemu.jobs.checkpoint.analyse import accounted_percent, partial_of, time_shares
from dlemu.jobs.checkpoint.measured import CheckpointJournal, CheckpointRunFacts, UnderWay
from dlemu.jobs.checkpoint.metrics import figures as checkpoint_figures
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.jobs.checkpoint.summary import Cause as CheckpointCause
from dlemu.jobs.checkpoint.summary import Caveat, CheckpointSummary, PhaseSummary
from dlemu.jobs.probe.requests import _cell_of_requests, cell_of_fio
from dlemu.jobs.probe.result import CellSpec
from dlemu.jobs.probe.thread_reads import Requests
from dlemu.jobs.training.activity import delivered_by_devices
from dlemu.jobs.training.measured import CpuApart, Facts, Journal, StoppedEarly
from dlemu.jobs.training.parts import figures as training_figures
from dlemu.jobs.training.prediction.from_reads import calibrate_from_run
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.result import Run
from dlemu.jobs.training.scaling import preprocessing_sleeps, reads_stall
from dlemu.jobs.training.steplog import STEP_DTYPE
from dlemu.jobs.training.summary import Summary
from dlemu.machine.environment import HostFacts, StorageFacts
from dlemu.metrics.au import kept_rows
from dlemu.metrics.cache import device_metrics
from dlemu.metrics.checkpoint_rates import CheckpointTimes
from dlemu.metrics.findings import Code
from dlemu.metrics.limit import Cause, Limit, Scaling
from dlemu.metrics.limit import What as TrainCause
from dlemu.metrics.loss import find_causes, kept_loss_percent, loss_percent
from dlemu.metrics.rates import Mean
from dlemu.metrics.rows import StepTable
from dlemu.plan.samples import Plan
from dlemu.plan.streams import StreamPlan
from dlemu.results.drive import OUTSIDE
from dlemu.results.figures import JobFigures, Value
from dlemu.results.file_names import KILLED
from dlemu.results.live import RunJournal
from dlemu.results.measured import RunFacts
from dlemu.runner.rows_job import RowsRun
from dlemu.studies.answers import Question, Trial
from dlemu.studies.compare.compare_sides import compare_runs
from dlemu.studies.size.size_verdict import Known, build_answer, outcome_of
from dlemu.telemetry import DeviceFacts, HostTelemetry, RecorderHead, Series
from tests.truth.frozen import Columns, FrozenRun
from tests.truth.frozen import read as read_frozen

Numbers = dict[str, Any]
"""What is computed of a run, as JSON has it. Findings are `origin.code`, or the code alone where it is a new one."""


def numbers_of(frozen: FrozenRun) -> Numbers:
    """Compute the numbers of a frozen run anew."""
    compute: dict[str, Callable[[FrozenRun], Numbers]] = {
        "train": _train_numbers,
        "checkpoint": _checkpoint_numbers,
        "kvcache": _kv_numbers,
        "pack": _pack_numbers,
        "probe": _probe_numbers,
        "predict": _predict_numbers,
        "size": _size_numbers,
        "compare": _compare_numbers,
    }
    numbers: Numbers = _plain(compute[frozen.kind](frozen))
    return numbers


_CHECKPOINT_CODES = (
    *(Code.NO_DATA_FROM_STORAGE, Code.PAGE_CACHE, Code.MEASUREMENT_INCOMPLETE, Code.STORAGE_NOT_STEADY),
    *(Code.EMULATOR_CEILING, Code.CPU_QUOTA, Code.NETWORK_FULL),
)
CODES: dict[str, dict[str, Iterable[str]]] = {
    "train": {
        "cause": get_args(TrainCause),
        "finding": Code,
    },
    "checkpoint": {
        "cause": get_args(CheckpointCause),
        "finding": [*Caveat, *_CHECKPOINT_CODES],
    },
    "predict": {
        "cause": [cause for cause in get_args(TrainCause) if cause != "emulator"],
        "finding": [OUTSIDE, Code.OTHER_PROGRAM_ON_CORES],
    },
    "predict_checkpoints": {"finding": [OUTSIDE, Code.STORAGE_NOT_STEADY, Code.PAGE_CACHE]},
}
"""Kind -> origin -> the codes that there are; those of a packing by `pack_codes`."""


def pack_codes() -> dict[str, Iterable[str]]:
    """Return origin -> the codes that there are of a packing."""
    pytest.importorskip("dlemu.contrib.pack")
    from dlemu.contrib.pack.summary import ADVICE, What

    return {"cause": get_args(What), "advice": ADVICE}


# What all kinds of run have


_GONE = ("_price", "kv.layout", "kv.pipe_gb_per_second")
"""Ends of the settings that there are no more."""


def _workload(frozen: FrozenRun) -> Workload:
    settings = {key: value for key, value in frozen.settings.items() if not key.endswith(_GONE)}
    if "checkpoint.mtbf_hours" in settings:  # of the whole job; today it is of one rank
        settings["checkpoint.gpu_mtbf_hours"] = settings.pop("checkpoint.mtbf_hours") * frozen.facts["ranks"]
    return load([override(key.split("."), value) for key, value in settings.items()])


def _structured(columns: Columns, dtype: np.dtype[np.void]) -> Any:
    rows = np.zeros(len(next(iter(columns.values()))), dtype)
    for name in columns.keys() & set(dtype.names or ()):  # columns that nothing is computed from are gone
        rows[name] = columns[name]
    return rows


def _run_facts(frozen: FrozenRun) -> dict[str, Any]:
    """Return the keywords of the facts of any kind of run, but for its journal."""
    return {
        "workload": _workload(frozen),
        "ranks": frozen.facts["ranks"],
        "seed": frozen.facts.get("seed", 0),
        "started_at": "",
        "recorders": tuple(RecorderHead(**_head(node, host)) for node, host in _recorders(frozen)),
        "failure": KILLED if frozen.facts.get("killed") else frozen.facts.get("failure"),
    }


def _journal(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of the journal of any kind of run."""
    file_system = facts.get("file_system")
    return {
        "wall_clock_offset_ns": 0,
        "started_ns": facts["began_ns"],
        "ended_ns": facts.get("ended_ns"),
        "hosts": tuple(
            HostFacts(
                host=host["name"],
                cpu_count=host["cores"],
                cpu_usable=host["usable_cores"],
                cpu_limit=host.get("cpu_limit_cores"),
                memory_bytes=host["memory_bytes"],
            )
            for host in facts["hosts"]
        ),
        "rank_nodes": tuple(facts["host_of_rank"]),
        "storage": None if file_system is None else StorageFacts(folder="", file_system=file_system),
        "requests": _request_counts(facts.get("object_requests")),
        "lost_recorders": tuple(facts.get("hosts_with_lost_telemetry", ())),
        "cpu_seconds": tuple(facts.get("cpu_seconds_of_ranks", ())),
    }


def _object_requests(requests: object, frozen: FrozenRun) -> Numbers | None:
    """Return the counts and times of requests."""
    if requests is None:
        return None
    counts = RequestCounts(np.array(_request_counts(frozen.facts["object_requests"]), np.int64))
    counters = {name: counts[name] for name in ("list", "delete", "connections_opened")}
    numbers: Numbers = _plain(requests)
    return numbers | counters | {"last_byte_ms": waits_ms(counts.last_byte)}


def _request_counts(requests: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Return the counters of requests to an object store; the histograms are pairs of upper edge in ms and count."""
    if requests is None:
        return ()
    values = RequestCounts().values
    for name, count in requests.items():
        if name in INDEX:
            values[INDEX[name]] = count
    for number, name in enumerate(("first_byte_ms", "last_byte_ms")):
        for upper_ms, count in requests[name]:
            place = round(FINE * math.log(1000 * upper_ms / LOWEST_US) / math.log(GROWTH))
            values[len(COUNTERS) + number * BINS + place] = count
    return tuple(values.tolist())


def _recorders(frozen: FrozenRun) -> Iterable[tuple[int, Mapping[str, Any]]]:
    return ((host["host"], host) for host in frozen.facts.get("telemetry", ()))


def _head(node: int, host: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "host": host["name"],
        "node": node,
        "boot_id": host["machine"],
        "interval_seconds": host["interval_seconds"],
        "probes": (),
        "devices": tuple(DeviceFacts(**device) for device in host["devices"]),
        "notes": (),
        "cpu_seconds": 0.0,
        "seconds": 0.0,
    }


def _telemetry(frozen: FrozenRun) -> tuple[HostTelemetry, ...]:
    readings = frozen.rows("telemetry")
    hosts = []
    for node, host in _recorders(frozen):
        own = {name: values[readings["host"] == node] for name, values in readings.items()}
        keys = list(map(Series, own["probe"].tolist(), own["source"].tolist(), own["metric"].tolist()))
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        hosts.append(
            HostTelemetry(
                **_head(node, host),
                series=tuple(places),
                which=np.array([places[key] for key in keys], np.int32),
                time_ns=own["time_ns"],
                value=own["value"],
            )
        )
    return tuple(hosts)


def _plain(value: Any) -> Any:
    """Return what JSON has of a value."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without(value: Any, *names: str) -> Numbers:
    return {name: item for name, item in asdict(value).items() if name not in names}


# Training


def _train_run(frozen: FrozenRun) -> Run:
    facts = frozen.facts
    plan = facts["plan"]
    shared: dict[str, Any] = {
        "num_files": plan["files"],
        "num_samples_per_file": plan["samples_per_file"],
        "batch_size": plan["batch_size"],
        "ranks": facts["ranks"],
        "file_shuffle": plan["shuffles_files"],
        "sample_shuffle": plan["shuffles_samples"],
        "seed": facts["seed"],
        "seed_change_epoch": plan["reshuffles_each_epoch"],
    }
    streams = plan.get("files_read_in_turn")
    stream_plan = streams and StreamPlan(**shared, cycle=streams, block_length=plan["records_in_turn"])
    scaling, early = facts.get("rates_by_readers"), facts.get("stopped_early")
    journal = Journal(
        **_journal(facts),
        ceiling_au_percent=facts.get("ceiling_au_percent"),
        cpu_apart=tuple(
            CpuApart(**{name: part[name] for name in ("checkpoints", "preprocessing", "steps") if name in part})
            for part in facts.get("cpu_seconds_of_ranks_not_for_reading", ())
        ),
        checkpoints=tuple(SavedCheckpoint(**saved) for saved in facts.get("checkpoints", ())),
        eviction_seconds=tuple(facts.get("eviction_seconds", ())),
        stopped_early=early and StoppedEarly(**early),
        scaling=scaling and Scaling(**{"again_mb_per_second": 0.0, **scaling}),
        clock_offsets_ns=tuple(map(tuple, facts.get("clock_offsets_ns", ()))),
    )
    return Run(
        "",
        Facts(
            **_run_facts(frozen),
            plan=None if streams else Plan(**shared, worker_streams=plan.get("ranges_of_a_rank", 1)),
            stream_plan=stream_plan or None,
            num_files_train=plan["files"],
            num_files_eval=facts.get("files_for_evaluation", 0),
            num_samples_per_file=plan["samples_per_file"],
            total_bytes=facts["dataset_bytes"],
            batches_ahead=facts["batches_ahead_of_a_rank"],
            reader_version=READER_VERSION,
            journal=journal,
        ),
        _structured(frozen.rows("train_steps"), STEP_DTYPE),
        _telemetry(frozen),
    )


def _train_numbers(frozen: FrozenRun) -> Numbers:
    run = _train_run(frozen)
    summary = run.summary
    limit, cache = summary.limited_by, summary.page_cache
    rows, kept = run.training, _kept(run)
    return {
        "complete": summary.complete,
        "outcome": summary.outcome,
        "verdict": summary.verdict_code,
        **_au_numbers(run),
        **_rates(run),
        "lost_percent": summary.loss_percent,
        "lost_in_counted_steps_percent": kept_loss_percent(kept) if len(rows) else None,
        "lost_in_epochs_percent": [
            loss_percent(epoch, kept.of("epoch", epoch.values("epoch"))) for epoch in rows.by_epoch
        ],
        "lost_by_cause_percent": _causes(run),
        "cause": limit.what if limit else None,
        "cause_confidence": limit.confidence if limit else None,
        "au_percent_without_cause": {_cause_name(cause): cause.au_percent for cause in limit.causes} if limit else {},
        "findings": sorted(_train_findings(summary)),
        "from_storage_percent": cache and _mean(cache.from_storage_percent),
        "served_by_storage_percent": cache and cache.served_percent,
        "speed_changes": [
            {"read_ms_before": None, "read_ms_after": None, **change} for change in _unsteady(summary, "speed_changed")
        ],
        "stalls": _unsteady(summary, "stalled"),
        "ran_out": next(iter(_unsteady(summary, "ran_out")), None),
        "first_touch": next(iter(_unsteady(summary, "first_touch")), None),
        "slow_folders": [
            {"name" if name == "folder" else name: value for name, value in folder.items()}
            for folder in summary.found(Code.SLOW_DRIVE)
        ],
        "stragglers": [{"rank": None, **_unnamed(late)} for late in summary.found(Code.SLOW_RANK)],
        "other_readers": next(iter(summary.found(Code.OTHER_PROGRAM_ON_DRIVE)), None),
        "evaluation": summary.evaluation,
        "checkpoints": summary.checkpoints,
        "asynchronous_checkpoints": summary.asynchronous_checkpoints,
        "samples_of_epochs": [{"each_sample_once": once} for once in summary.each_sample_once],
        "object_requests": _object_requests(summary.requests, frozen),
        "power": [
            {"host": host, "source": meter, "mean_watts": watts}
            for host, meters in (summary.telemetry.power.items() if summary.telemetry else ())
            for meter, watts in meters.items()
        ],
    }


def _au_numbers(run: Run) -> Numbers:
    metrics = run.summary.metrics
    uncertainty = metrics.au_uncertainty
    return {
        "au_counted_steps_percent": _mean(metrics.au_percent),
        "au_sustained_percent": _mean(metrics.au_sustained_percent),
        "uncertainty_percent": uncertainty and uncertainty.expanded_percent,
        "uncertainty_parts_percent": list(uncertainty.budget.values()) if uncertainty else [],
        "au_whole_epochs_percent": _mean(metrics.au_whole_percent),
        "au_dlio_2_percent": _mean(metrics.au_dlio_percent),
        "au_dlio_1_percent": _mean(metrics.au_dlio_v1_percent),
        "prefetch_credit_percent": metrics.prefetch_credit_percent,
        "ceiling_au_percent": metrics.ceiling_au_percent,
        "au_threshold_percent": metrics.au_threshold_percent,
        "planned_steps_of_epochs": metrics.steps_per_epoch,
        "dropped_samples": metrics.dropped_samples,
    }


def _kept(run: Run) -> StepTable:
    """Return the counted steps of a run."""
    settings = run.facts.workload.metric
    return kept_rows(run.training, settings.exclude_start_steps, settings.exclude_end_steps)


def _rates(run: Run) -> Numbers:
    metrics, rows = run.summary.metrics, run.training
    return {
        "samples": metrics.samples,
        "app_bytes": metrics.app_bytes,
        "read_calls": metrics.read_calls,
        "samples_per_second": _mean(metrics.samples_per_second),
        "app_mb_per_second": _mean(metrics.app_mb_per_second),
        "device_mb_per_second": _mean(metrics.device_mb_per_second),
        "device_bytes_percent_of_app": _mean(device_metrics(rows, delivered_by_devices(run))[1]) if len(rows) else None,
        "device_request_kib": _mean(metrics.device_request_kib),
        "training_seconds": metrics.training_seconds,
        "total_seconds": metrics.total_seconds,
        "first_batch_seconds": _mean(metrics.time_to_first_batch_seconds),
        "wait_of_counted_steps_ms": metrics.wait_ms,
        "read_ms": metrics.read_ms,
        "woke_late_ms": metrics.host_oversleep_ms,
        "cpu_seconds_per_gb": metrics.cpu_seconds_per_gb,
        "read_cpu_seconds_per_gb": metrics.read_cpu_seconds_per_gb,
    }


def _mean(value: Mean | None) -> Numbers | None:
    return None if value is None else {"mean": value.mean, "of_epochs": value.per_epoch}


def _causes(run: Run) -> Numbers | None:
    """Return the loss of the counted steps by what workers did meanwhile."""
    kept, reader = _kept(run), run.facts.workload.reader
    if not len(kept):
        return None
    causes = find_causes(
        kept,
        preprocesses=preprocessing_sleeps(reader.preprocess_time, run.training),
        workers=run.facts.ranks * max(1, reader.read_threads),
        reads_stall=reads_stall(run.facts.workload),
    )
    return {
        "reading": causes.storage,
        "preprocessing": causes.pause,
        "computing": causes.computing,
        "waiting_for_a_core": causes.starved,
        "not_begun": causes.queueing,
        "handing_over": causes.hand_over,
    }


def _unsteady(summary: Summary, pattern: str) -> list[Numbers]:
    return [_unnamed(numbers) for numbers in summary.found(Code.STORAGE_NOT_STEADY, pattern)]


def _unnamed(numbers: Mapping[str, Any]) -> Numbers:
    return {name: value for name, value in numbers.items() if name != "pattern"}


def _cause_name(cause: Cause) -> str:
    """Return the name that the cause had: a part of the loader by the setting that removes it."""
    parts = {"prefetch_size": "prefetch", "read_threads": "readers", "transfer_size": "requests"}
    part = parts.get((cause.setting or "").removeprefix("reader.").partition("=")[0])
    return f"{cause.what}, {part}" if part else cause.what


def _train_findings(summary: Summary) -> set[str]:
    explaining = summary.limited_by.findings if summary.limited_by else ()
    return {finding.code for finding in (*explaining, *summary.findings)}


# Checkpoints


def _checkpoint_run(frozen: FrozenRun) -> CheckpointRun:
    facts = frozen.facts
    under_way = facts.get("under_way")
    journal = CheckpointJournal(
        **_journal(facts),
        clock_offsets_ns=tuple(facts.get("clock_offsets_ns", ())),
        ceiling_gb_per_second=facts.get("ceiling_gb_per_second"),
        under_way=under_way and UnderWay(**under_way),
        complete=tuple(facts["complete_checkpoints"]),
        removed=tuple(facts.get("removed_checkpoints", ())),
        peak_memory_bytes=tuple(facts.get("peak_memory_bytes_of_ranks", ())),
    )
    run_facts = _run_facts(frozen)
    workload = run_facts["workload"]
    written = plan_checkpoint(workload.model, workload.checkpoint, run_facts["ranks"]).sizes
    return CheckpointRun(
        "",
        CheckpointRunFacts(**run_facts, journal=journal, written=written),
        _structured(frozen.rows("checkpoint_parts"), IO_DTYPE),
        _telemetry(frozen),
    )


def _checkpoint_numbers(frozen: FrozenRun) -> Numbers:
    run = _checkpoint_run(frozen)
    summary, what, journal = run.summary, run.summary.what, run.facts.journal
    behind = summary.asynchronous
    return {
        "complete": summary.complete,
        "outcome": _checkpoint_outcome(summary),
        "files": what.files,
        "bytes": what.bytes,
        "tensor_bytes": what.tensor_bytes,
        "parameters": what.parameters,
        "write": _phase_numbers(run, WRITE, summary.write),
        "read": _phase_numbers(run, READ, summary.read),
        "training_cost": summary.training,
        "asynchronous": behind and asdict(behind) | {"safe_seconds": {"mean": behind.safe_seconds}},
        "ceiling_gb_per_second": summary.ceiling_gb_per_second,
        "peak_memory_mb": summary.peak_memory_mb,
        "total_seconds": (journal.ended_ns - journal.started_ns) / 1e9 if journal.ended_ns else None,
        "complete_checkpoints": journal.complete,
        "partial": partial_of(run),
        "object_requests": _object_requests(summary.requests, frozen),
        "findings": sorted(finding.code for finding in summary.findings),
    }


def _checkpoint_outcome(summary: CheckpointSummary) -> str:
    done = [verb for verb, phase in (("written", summary.write), ("read", summary.read)) if phase is not None]
    return ("_and_".join(done) or "nothing") if summary.complete else "incomplete"


def _phase_numbers(run: CheckpointRun, number: int, phase: PhaseSummary | None) -> Numbers | None:
    if phase is None:
        return None
    limit = phase.limited_by
    return {
        "checkpoints": [_times(run, number, times) for times in phase.checkpoints],
        "slowest_rank_gib_per_second": {"mean": phase.slowest_gib_per_second},
        "slowest_rank_seconds": {"mean": phase.slowest_seconds},
        "rank0_gib_per_second": {"mean": phase.rank0_gib_per_second},
        "wall_gb_per_second": phase.wall_gb_per_second,
        "fsync_percent": phase.fsync_percent,
        "from_storage_percent": phase.from_storage_percent,
        "device_mb_per_second": phase.device_mb_per_second,
        "steady": phase.steady,
        "cpu_seconds_per_gb": phase.cpu_seconds_per_gb,
        "content_cpu_seconds_per_gb": phase.content_cpu_seconds_per_gb,
        "slowest_ranks": [_without(rank, "host") for rank in phase.slowest_ranks],
        "cause": limit.what if limit else None,
        "cause_confidence": limit.confidence if limit else None,
    }


def _times(run: CheckpointRun, phase: int, times: CheckpointTimes) -> Numbers:
    rows = run.whole[(run.whole["phase"] == phase) & (run.whole["checkpoint"] == times.checkpoint)]
    return asdict(times) | {
        "rank0_gib_per_second": times.rank0_gib_per_second,
        "slowest_gib_per_second": times.slowest_gib_per_second,
        "wall_gb_per_second": times.wall_gb_per_second,
        "starved_percent": time_shares(rows)["starved_percent"],
        "from_storage_percent": accounted_percent(run.facts, rows) if phase == READ else None,
    }


# KV cache


def _kv_numbers(frozen: FrozenRun) -> Numbers:
    pytest.importorskip("dlemu.contrib.kvcache")
    from dlemu.contrib.kvcache.analyse import RunRows
    from dlemu.contrib.kvcache.job import JOB
    from dlemu.contrib.kvcache.model import Model
    from dlemu.contrib.kvcache.summary import COLUMNS, KvSummary

    dtype = np.dtype([(name, np.int64) for name in COLUMNS])
    facts = RunFacts(kind="kvcache", **_run_facts(frozen), journal=RunJournal(**_journal(frozen.facts)))
    run = RowsRun("", facts, _structured(frozen.rows("kvcache_prompts"), dtype), _telemetry(frozen), JOB)
    summary: KvSummary = run.summary
    data = RunRows(run)
    official = summary.official and {
        **asdict(summary.official),
        "option": summary.option,
        "requests": summary.prompts,
        "true_window_seconds": data.window_seconds,
        "overstated_percent": summary.official.overstated_percent,
    }
    return {
        "complete": summary.complete,
        "outcome": summary.outcome,
        "sustained": summary.sustained,
        "backlog": None if summary.sustained is None else data.backlog,
        "prompts": summary.prompts,
        "load_seconds": data.span_seconds,
        "prompts_per_second": summary.prompts_per_second,
        "first_token_seconds": summary.ttft_seconds,
        "load_from_storage_seconds": summary.load_times,
        "utilisation_percent": summary.utilisation_percent,
        "gpu_seconds_won": summary.gpu_seconds_won,
        "break_even_gb_per_second": summary.break_even_gb_per_second,
        "window_seconds": data.window_seconds,
        "read_bytes": summary.read_bytes,
        "written_bytes": summary.written_bytes,
        "read_gb_per_second": summary.read_gb_per_second,
        "write_gb_per_second": summary.write_gb_per_second,
        "token_bytes": Model(data.settings).token_bytes,
        "block_bytes": summary.block_bytes,
        "tokens_from_percent": {"storage": summary.tokens_from_storage_percent},
        "from_storage_percent": summary.from_storage_percent,
        "official": official,
        "ceiling_times": summary.ceiling_times,
        "cpu_seconds_per_gb": summary.cpu_seconds_per_gb,
        "cause": summary.limited_by,
        "findings": [],
    }


# Packing


def _pack_numbers(frozen: FrozenRun) -> Numbers:
    pytest.importorskip("dlemu.contrib.pack")
    from dlemu.contrib.pack.job import JOB
    from dlemu.contrib.pack.summary import PackSummary, device_activity
    from dlemu.machine.environment import HostFacts, StorageFacts

    own = frozen.facts
    packed = [file["images"] for file in own["packed_files"]]
    whole = {"began_ns": own["began_ns"], "ended_ns": own["ended_ns"], "images_per_file": own["images_per_file"]}
    rows = _packing_rows(frozen.rows("pack_processes"), {**whole, "set_images": sum(packed)})
    journal = RunJournal(
        wall_clock_offset_ns=0,
        started_ns=0,
        hosts=(HostFacts(host="host", cpu_usable=own["cores"]),),
        storage=StorageFacts(folder="", file_system=own["file_system"]),
    )
    workload = load(["workload=default", "pack.target=packed"])
    facts = RunFacts(kind="pack", workload=workload, ranks=len(rows), seed=0, started_at="", journal=journal)
    run = RowsRun("", facts, rows, _telemetry(frozen), JOB)
    summary: PackSummary = run.summary
    limit = summary.limited_by
    assert limit is not None
    times = ("reading", "computing", "wanting_core", "writing", "idle")
    return {
        **{key: getattr(summary, key) for key in PACK_NUMBERS},
        **{key: int(rows[key].sum()) for key in ("read_bytes", "written_bytes")},
        "processes": summary.ranks,
        "time_percent": {name: getattr(summary, f"{name}_percent") for name in times},
        "device": device_activity(run, (own["began_ns"], own["ended_ns"])),
        "cause": limit.what,
        "cause_confidence": limit.confidence,
        "findings": [f"advice.{limit.advice}"],
    }


PACK_NUMBERS = (
    *("images", "kept_images", "files", "seconds", "images_per_second", "read_mb_per_second", "write_mb_per_second"),
    *("from_storage_percent", "cpu_percent", "cpu_seconds_per_gb", "host_busy_percent"),
)


def _packing_rows(columns: Columns, whole: Mapping[str, int]) -> Any:
    """Return rows of processes that read, compute and write in turn.

    The frozen ones read and wrote in other threads: the time that the computing one waited for such a thread is divided
    as that thread's own was. Where it waited for a thread without a task, it was idle.
    """
    total = {name: float(values.sum()) for name, values in columns.items()}
    counters = {name: columns[name] for name in ("images", "read_bytes", "written_bytes", "storage_bytes", "cpu_ns")}
    times = {f"compute_{spent}": total[f"compute_{of}"] for spent, of in (("whole_ns", "ns"), ("cpu_ns", "cpu_ns"))}
    times["compute_cpu_wait_ns"] = 0.0
    idle_ns = min(total["await_task_ns"], total["await_read_ns"])
    for part, waited_ns in (("read", total["await_read_ns"] - idle_ns), ("write", total["await_write_ns"])):
        times[f"{part}_whole_ns"] = waited_ns
        for spent in ("cpu_ns", "cpu_wait_ns"):
            times[f"{part}_{spent}"] = waited_ns * total[f"{part}_{spent}"] / total[f"{part}_ns"]
    names = [*counters, *whole, "sample_bytes", *times]
    dtype = np.dtype([(one, float if one in times else int) for one in names])
    rows = np.zeros(len(next(iter(columns.values()))), dtype)
    for name, values in {**counters, **whole}.items():
        rows[name] = values
    for name, value in times.items():
        rows[name][0] = value
    return rows


# Probes


def _probe_numbers(frozen: FrozenRun) -> Numbers:
    facts = frozen.facts
    spec = CellSpec(access=facts["access"], size_bytes=facts["request_bytes"], depth=facts["depth"], jobs=facts["jobs"])
    if "fio_report" in facts:
        cell = cell_of_fio(facts["fio_report"], spec)
    else:
        rows = frozen.rows("probe_requests")
        jobs = [rows["job"] == job for job in range(facts["jobs"])]
        requests = [
            Requests(rows["end_ns"][own], rows["latency_ns"][own], cpu_seconds)
            for own, cpu_seconds in zip(jobs, facts["cpu_seconds_of_jobs"], strict=True)
        ]
        cell = _cell_of_requests(spec, facts["began_ns"], requests, facts["seconds"])
    return {
        "seconds": cell.seconds,
        "mb_per_second": cell.mb_per_second,
        "requests_per_second": cell.iops,
        "latency_ms": cell.latency_ms,
        "cpu_seconds_per_gb": cell.cpu_seconds_per_gb,
        "findings": [],
    }


# Judgements of several runs


def _predict_numbers(frozen: FrozenRun) -> Numbers:
    (name,) = frozen.of
    run = _train_run(read_frozen(name))
    calibration = calibrate_from_run(run)
    answer = predict(run.facts.workload, calibration, ranks=frozen.facts.get("accelerators"), most=64)
    interval = answer.max_accelerators_interval
    return {
        "verdict": {"fail": "fails", "pass": "passes"}[answer.outcome] if interval is None else "none_passes",
        "outcome": answer.outcome,
        "max_accelerators": answer.max_accelerators,
        "max_accelerators_interval": answer.max_accelerators_interval,
        "counts": {
            str(count.accelerators): {
                "au_percent": count.au_percent,
                "au_interval_percent": count.au_interval_percent,
                "au_sustained_percent": count.au_sustained_percent,
                "samples_per_second": count.samples_per_second,
            }
            for count in answer.counts
        },
        "mb_per_second_by_readers": {str(part.readers): part.mb_per_second for part in calibration.curve},
        "cause": answer.limited_by.what,
        "findings": [finding.code for finding in answer.findings],
    }


def _size_numbers(frozen: FrozenRun) -> Numbers:
    facts = frozen.facts
    known = Known(
        probe_mb_per_second=facts["probe_mb_per_second"],
        mb_per_accelerator=facts["mb_per_second_of_an_accelerator"],
        most=facts["most_accelerators"],
        most_why="",
        naive_seconds_per_trial=facts["seconds_of_a_whole_run"],
    )
    question = Question(
        workload="",
        accelerator="",
        threshold_percent=facts["threshold_percent"],
        confidence_percent=facts["confidence_percent"],
        settings_digest="",
    )
    answer = build_answer(question, known, [_trial(trial) for trial in facts["trials"]], refusal=facts["refusal"])
    return {
        "outcome": outcome_of(answer, facts["accelerators_wanted"]),
        "max_accelerators": answer.max_accelerators,
        "too_close_to_tell": [count.accelerators for count in answer.too_close_to_tell],
        "passing": answer.max_accelerators or None,
        "failing": answer.failing and answer.failing.accelerators,
        "counts": {
            str(count.accelerators): {
                "au_sustained_percent": count.au_sustained_percent,
                "half_width_percent": count.half_width_percent,
                "passed": count.passed,
                "trials": count.trials,
            }
            for count in answer.counts
        },
        "one_more_wants_mb_per_second": answer.wanted_mb_per_second,
        "storage_mb_per_second": answer.storage_mb_per_second,
        "storage_could_feed": answer.storage_could_feed,
        "naive_seconds": answer.naive_seconds,
        "cause": answer.limited_by.what,
        "findings": _FINDINGS_OF_SIZES.get(answer.limited_by.what, []),
    }


_FINDINGS_OF_SIZES = {"host": ["refused_by_the_host"], "emulator": ["emulator_ceiling"]}
"""Cause of a search -> what its sentence says."""


def _trial(trial: Mapping[str, Any]) -> Trial:
    au = float(np.mean(trial["au_of_windows_percent"]))
    return Trial(
        accelerators=trial["accelerators"],
        folder="",
        au_sustained_percent=au,
        half_width_percent=0.0,
        settled=True,
        window_au_percent=tuple(trial["au_of_windows_percent"]),
        seconds=trial["seconds"],
        mb_per_accelerator=trial["mb_per_second_of_an_accelerator"],
        limited_by=Limit(what=trial["cause"], confidence="high") if trial["cause"] else None,
        figures=JobFigures(
            kind="training",
            workload="",
            ranks=trial["accelerators"],
            metrics={name: Value(trial[name]) for name in ("ceiling_au_percent", "app_mb_per_second")},
        ),
    )


def _compare_numbers(frozen: FrozenRun) -> Numbers:
    a, b = map(read_frozen, frozen.of)
    if a.kind == "train":
        pair = compare_runs(training_figures(_train_run(a)), training_figures(_train_run(b)), (), {}, {})
    else:
        pair = compare_runs(checkpoint_figures(_checkpoint_run(a)), checkpoint_figures(_checkpoint_run(b)), (), {}, {})
    return {
        "differences": {
            name: asdict(value) | {"distinct": value.distinct}
            for name, value in pair.metrics.items()
            if name != _NOT_FROZEN
        },
        "days_saved_per_year": pair.plan and pair.plan.days_saved_per_year,
        "findings": [],
    }


_NOT_FROZEN = "au_whole_percent"  # it had another name where runs are compared, which was to go
