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
from dlemu.jobs.checkpoint.analyse import CheckpointRun, accounted_percent, time_shares
from dlemu.jobs.checkpoint.measured import CheckpointJournal, CheckpointRunFacts, UnderWay
from dlemu.jobs.checkpoint.parts import figures as checkpoint_figures
from dlemu.jobs.checkpoint.summary import Cause as CheckpointCause
from dlemu.jobs.checkpoint.summary import Caveat, CheckpointSummary, PhaseSummary
from dlemu.jobs.probe.requests import _cell_of_requests, cell_of_fio
from dlemu.jobs.probe.result import CellSpec, Requests
from dlemu.jobs.training.activity import delivered_by_devices
from dlemu.jobs.training.measured import Facts, Journal
from dlemu.jobs.training.parts import figures as training_figures
from dlemu.jobs.training.prediction.from_reads import calibrate_from_run
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.result import Run
from dlemu.jobs.training.scaling import explain_loss
from dlemu.jobs.training.steplog import EVALUATION, STEP_DTYPE
from dlemu.jobs.training.summary import Summary
from dlemu.machine.environment import HostFacts, StorageFacts
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.metrics.cache import device_metrics
from dlemu.metrics.checkpoint_rates import CheckpointTimes, wasted_percent, young_seconds
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.limit import Limit, Scaling
from dlemu.metrics.limit import What as TrainCause
from dlemu.metrics.loss import loss_percent
from dlemu.metrics.rates import Mean, per_second, percentiles_ms, pooled
from dlemu.metrics.rows import StepTable
from dlemu.plan.samples import Plan
from dlemu.plan.streams import StreamPlan
from dlemu.results import KILLED
from dlemu.results.drive import OUTSIDE
from dlemu.results.figures import JobFigures, Value
from dlemu.results.live import RunJournal
from dlemu.results.measured import RunFacts
from dlemu.runner.job_kind import RowsRun
from dlemu.studies.answers import Question, Trial
from dlemu.studies.compare.compare_sides import compare_runs
from dlemu.studies.size.size_verdict import SearchInputs, build_answer, outcome_of
from dlemu.telemetry import DeviceFacts, HostTelemetry, RecorderHead, Series
from tests.truth.frozen import Columns, FrozenRun
from tests.truth.frozen import read as read_frozen

Numbers = dict[str, Any]
"""What was computed of a run, as JSON has it. Findings are `origin.code`, or the code alone where it is a new one."""


STRUCK = "no longer computed"
"""Stands for a number that no result has any more; test_truth.py lists these."""


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
    "train": {"cause": get_args(TrainCause), "finding": Code},
    "checkpoint": {"cause": get_args(CheckpointCause), "finding": [*Caveat, *_CHECKPOINT_CODES]},
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


_GONE = ("_price", "kv.layout", "kv.pipe_gb_per_second", "kv.gpu_gb", "kv.dram_gb")
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
    """Return the counts and times of requests; their cost and the CPU time of TLS are not computed any more."""
    if requests is None:
        return None
    assert is_dataclass(requests)
    assert not isinstance(requests, type)
    counts = RequestCounts(np.array(_request_counts(frozen.facts["object_requests"]), np.int64))
    counters = {name: counts[name] for name in ("head", "list", "delete", "sent_bytes", "connections_opened")}
    times = {"last_byte_ms": waits_ms(counts.last_byte)}
    return asdict(requests) | counters | times | dict.fromkeys(("cost", "tls_cpu_seconds"), STRUCK)


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


def _codes(origin: str, findings: Iterable[Finding]) -> set[str]:
    return {f"{origin}.{finding.code}" for finding in findings}


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
        checkpoints=tuple(SavedCheckpoint(**saved) for saved in facts.get("checkpoints", ())),
        stopped_after_steps=early and early["steps"],
        scaling=scaling and Scaling(**{"again_mb_per_second": 0.0, **scaling}),
    )
    return Run(
        "",
        Facts(
            **_run_facts(frozen),
            plan=None if streams else Plan(**shared, worker_streams=plan.get("ranges_of_a_rank", 1)),
            stream_plan=stream_plan or None,
            num_files_eval=facts.get("files_for_evaluation", 0),
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
    rows, kept, hosts = run.training, _kept(run), run.facts.journal.hosts
    return {
        "complete": summary.complete,
        "outcome": summary.outcome,
        "verdict": summary.verdict_code,
        **_au_numbers(run),
        **_rates(run),
        "lost_percent": summary.loss_percent,
        "lost_in_counted_steps_percent": loss_percent(kept, kept) if len(rows) else None,
        "lost_in_epochs_percent": [
            loss_percent(epoch, kept.of("epoch", epoch.values("epoch"))) for epoch in rows.by_epoch
        ],
        "lost_by_cause_percent": _causes(run),
        "cause": limit.what if limit else None,
        "cause_confidence": limit.confidence if limit else None,
        "au_percent_without_cause": STRUCK,
        "findings": sorted(_train_findings(summary)),
        "from_storage_percent": cache and _mean(cache.from_storage_percent),
        "served_by_storage_percent": cache and cache.served_percent,
        "dataset_to_memory_ratio": cache and run.facts.total_bytes / sum(host.memory_bytes for host in hosts),
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
        "evaluation": summary.evaluation and _evaluation(run),
        "checkpoints": [
            {"started_ns": saved.started_ns, "ended_ns": saved.ended_ns, "mb_per_second": STRUCK, **asdict(timing)}
            for saved, timing in zip(run.facts.journal.checkpoints, summary.checkpoints, strict=True)
        ],
        "asynchronous_checkpoints": _beside_training(summary),
        "samples_of_epochs": _samples_of_epochs(run),
        "object_requests": _object_requests(summary.requests, frozen),
        "power": _power(run),
    }


def _evaluation(run: Run) -> Numbers:
    rows, evaluation = run.ordered.of("phase", (EVALUATION,)), run.summary.evaluation
    assert evaluation is not None
    return asdict(evaluation) | {
        "samples_per_second": evaluation.samples / evaluation.seconds,
        "app_mb_per_second": per_second(float(rows["app_bytes"].sum()) / 1e6, rows),
    }


def _samples_of_epochs(run: Run) -> list[Numbers]:
    plan, rows = run.facts.train_plan, run.training
    return [
        {
            "epoch": epoch.number,
            "samples_read": rows.of("epoch", (epoch.number,))["samples"].sum(),
            "samples_planned": epoch.steps * plan.batch_size * plan.ranks,
            "each_sample_once": once,
        }
        for epoch, once in zip(run.facts.schedule, run.summary.each_sample_once, strict=False)
    ]


def _beside_training(summary: Summary) -> Numbers | None:
    found = summary.asynchronous_checkpoints
    if found is None:
        return None
    during, otherwise = found.step_seconds_during, found.step_seconds_otherwise
    return asdict(found) | {
        "stall_seconds": float(np.mean([saved.stall_seconds for saved in summary.checkpoints])),
        "safe_seconds": float(np.mean([saved.seconds for saved in summary.checkpoints])),
        "slow_down_percent": 100 * (during / otherwise - 1) if during and otherwise else None,
        "steps_during": STRUCK,
        "shortest_interval_seconds": STRUCK,
    }


def _power(run: Run) -> list[Numbers]:
    telemetry = run.summary.telemetry
    gb_per_second = per_second(float(run.training["app_bytes"].sum()) / 1e9, run.training)
    return [
        {"host": host, "source": meter, "mean_watts": watts, "gb_per_second_per_watt": watts and gb_per_second / watts}
        for host, meters in (telemetry.power.items() if telemetry else ())
        for meter, watts in meters.items()
    ]


def _au_numbers(run: Run) -> Numbers:
    metrics, kept, rows = run.summary.metrics, _kept(run), run.training
    uncertainty = metrics.au_uncertainty
    return {
        "au_counted_steps_percent": _mean(metrics.au_percent, map(au_percent, kept.by_rank)),
        "au_sustained_percent": _mean(metrics.au_sustained_percent),
        "uncertainty_percent": uncertainty and uncertainty.expanded_percent,
        "uncertainty_parts_percent": list(uncertainty.budget.values()) if uncertainty else [],
        "au_whole_epochs_percent": _mean(metrics.au_whole_percent, map(au_percent, rows.by_rank)),
        "au_dlio_2_percent": _mean(metrics.au_dlio_percent),
        "au_dlio_1_percent": _mean(metrics.au_dlio_v1_percent),
        "prefetch_credit_percent": metrics.prefetch_credit_percent,
        "ceiling_au_percent": metrics.ceiling_au_percent,
        "au_threshold_percent": metrics.au_threshold_percent,
        "planned_steps_of_epochs": metrics.steps_per_epoch,
        "dropped_samples": STRUCK,
    }


def _kept(run: Run) -> StepTable:
    """Return the counted steps of a run."""
    settings = run.facts.workload.metric
    return kept_rows(run.training, settings.exclude_start_steps, settings.exclude_end_steps)


def _waits_ms(rows: StepTable) -> Any:
    return percentiles_ms(rows["wait_ns"])


def _rates(run: Run) -> Numbers:
    metrics, rows, kept = run.summary.metrics, run.training, _kept(run)
    per_rank = [_waits_ms(own) for own in rows.by_rank]
    mb_of_ranks = [per_second(float(own["app_bytes"].sum()) / 1e6, own) for own in rows.by_rank]
    rate, waits = _mean(metrics.app_mb_per_second, mb_of_ranks), kept["wait_ns"]
    handed = np.minimum(waits, np.maximum(kept["ready_ns"] - kept["finished_ns"], 0))
    cpu_ns = int(rows["cpu_ns"].sum() - rows["preprocess_cpu_ns"].sum())
    return {
        "samples": metrics.samples,
        "app_bytes": metrics.app_bytes,
        "read_calls": STRUCK,
        "samples_per_second": _mean(
            metrics.samples_per_second, (per_second(float(own["samples"].sum()), own) for own in rows.by_rank)
        ),
        "app_mb_per_second": rate,
        "app_mib_per_second": _in_mib(rate),
        "device_mb_per_second": _mean(metrics.device_mb_per_second),
        "device_bytes_percent_of_app": _mean(device_metrics(rows, delivered_by_devices(run, "read_mb_per_second"))[1])
        if len(rows)
        else None,
        "request_bytes": _mean(pooled(rows, _call_bytes)) if len(rows) else None,
        "device_request_kib": _mean(metrics.device_request_kib),
        "training_seconds": metrics.training_seconds,
        "total_seconds": metrics.total_seconds,
        "first_batch_seconds": _mean(metrics.time_to_first_batch_seconds),
        "wait_ms": _waits_ms(rows) if len(rows) else None,
        "wait_of_counted_steps_ms": metrics.wait_ms,
        "wait_of_epochs_ms": [_waits_ms(epoch) for epoch in rows.by_epoch] if len(rows) else [],
        "wait_of_ranks_p99_ms": [waits.p99 if waits else None for waits in per_rank],
        "read_ms": STRUCK,
        "woke_late_ms": metrics.host_oversleep_ms,
        "hand_over_share_of_wait": (int(handed.sum()) / int(waits.sum()) if waits.any() else 0.0)
        if len(rows)
        else None,
        "cpu_seconds": sum(run.facts.journal.cpu_seconds) or None,
        "cpu_seconds_per_gb": metrics.cpu_seconds_per_gb,
        "read_cpu_seconds_per_gb": STRUCK,
        "worker_cpu_seconds_per_gb": cpu_ns / metrics.app_bytes if metrics.app_bytes and rows["cpu_ns"].any() else None,
    }


def _mean(value: Mean | None, of_ranks: Iterable[float] | None = None) -> Numbers | None:
    if value is None:
        return None
    numbers: Numbers = {"mean": value.mean, "of_epochs": value.per_epoch}
    return numbers if of_ranks is None else numbers | {"of_ranks": list(of_ranks)}


def _call_bytes(rows: StepTable) -> float:
    calls = int(rows["read_calls"].sum())
    return int(rows["app_bytes"].sum()) / calls if calls else math.nan


def _in_mib(numbers: Numbers | None) -> Numbers | None:
    """Return rates in 1e6 bytes/s as those in 2^20 bytes/s."""
    if numbers is None:
        return None

    def scaled(value: Any) -> Any:
        return [each and scaled(each) for each in value] if isinstance(value, list | tuple) else value * 1e6 / 2**20

    return {name: value and scaled(value) for name, value in numbers.items()}


def _causes(run: Run) -> Numbers | None:
    """Return the loss of the counted steps by what workers did meanwhile."""
    kept = _kept(run)
    if not len(kept):
        return None
    causes, _ = explain_loss(run.facts.workload, kept, run.facts.ranks)
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
    summary, journal = run.summary, run.facts.journal
    return {
        "complete": summary.complete,
        "outcome": _checkpoint_outcome(summary),
        "files": summary.files,
        "bytes": summary.bytes,
        "tensor_bytes": summary.tensor_bytes,
        "parameters": run.facts.written.parameters,
        "write": _phase_numbers(run, WRITE, summary.write),
        "read": _phase_numbers(run, READ, summary.read),
        "training_cost": _training_cost(run),
        "asynchronous": _asynchronous(run),
        "ceiling_gb_per_second": summary.ceiling_gb_per_second,
        "peak_memory_mb": STRUCK,
        "cpu_seconds": sum(journal.cpu_seconds) if journal.cpu_seconds else None,
        "total_seconds": (journal.ended_ns - journal.started_ns) / 1e9 if journal.ended_ns else None,
        "complete_checkpoints": journal.complete,
        "partial": _partial(run),
        "object_requests": _object_requests(summary.requests, frozen),
        "findings": sorted(finding.code for finding in summary.findings),
    }


def _checkpoint_outcome(summary: CheckpointSummary) -> str:
    done = [verb for verb, phase in (("written", summary.write), ("read", summary.read)) if phase is not None]
    return ("_and_".join(done) or "nothing") if summary.complete else "incomplete"


def _partial(run: CheckpointRun) -> Numbers | None:
    """Return what the verdict of a run that ended early says of the checkpoint under way, and how many ranks had it."""
    partial, files, summary = run.facts.journal.under_way, run.partial_files, run.summary
    if partial is None or summary.complete:
        return None
    phase = WRITE if partial.phase == "write" else READ
    ranks = ((run.whole["phase"] == phase) & (run.whole["checkpoint"] == partial.checkpoint)).sum()
    done = {"files": len(files), "bytes": int(files["bytes"].sum()), "ranks": ranks}
    return asdict(partial) | done | {"of_files": summary.files, "of_bytes": summary.bytes}


def _over(values: list[float]) -> Numbers:
    """Return the distribution of one figure over the checkpoints."""
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    extremes = {"max": max(values), "min": min(values)}
    return {"mean": np.mean(values), "std": np.std(values), "p50": p50, "p90": p90, "p99": p99, **extremes}


def _phase_numbers(run: CheckpointRun, number: int, phase: PhaseSummary | None) -> Numbers | None:
    if phase is None:
        return None
    limit = phase.limited_by

    def over(name: str) -> Numbers:
        return _over([getattr(times, name) for times in phase.checkpoints])

    return {
        "checkpoints": [_times(run, number, times) for times in phase.checkpoints],
        "slowest_rank_gib_per_second": over("slowest_gib_per_second") | {"mean": phase.slowest_gib_per_second},
        "slowest_rank_seconds": over("slowest_seconds") | {"mean": phase.slowest_seconds},
        "rank0_gib_per_second": over("rank0_gib_per_second"),
        "rank0_seconds": over("rank0_seconds"),
        "wall_gb_per_second": phase.wall_gb_per_second,
        "fsync_percent": phase.fsync_percent,
        "from_storage_percent": phase.from_storage_percent,
        "device_mb_per_second": phase.device_mb_per_second,
        "steady": phase.steady,
        "cpu_seconds_per_gb": phase.cpu_seconds_per_gb,
        "content_cpu_seconds_per_gb": STRUCK,
        "slowest_ranks": STRUCK,
        "cause": limit.what if limit else None,
        "cause_confidence": limit.confidence if limit else None,
    }


def _times(run: CheckpointRun, phase: int, times: CheckpointTimes) -> Numbers:
    rows = run.whole[(run.whole["phase"] == phase) & (run.whole["checkpoint"] == times.checkpoint)]
    return asdict(times) | {
        "fsync_max_seconds": rows["fsync_ns"].max() / 1e9,
        "folder_sync_seconds": rows["folder_sync_ns"].max() / 1e9,
        "rank0_gib_per_second": times.rank0_gib_per_second,
        "slowest_gib_per_second": times.slowest_gib_per_second,
        "wall_gb_per_second": times.wall_gb_per_second,
        "starved_percent": time_shares(rows)["starved_percent"],
        "from_storage_percent": accounted_percent(run.facts, rows) if phase == READ else None,
    }


def _training_cost(run: CheckpointRun) -> Numbers | None:
    """Return the cost, with what follows from it by a formula that is applied to another interval, or is another's."""
    cost, read, behind = run.summary.training, run.summary.read, run.summary.asynchronous
    if cost is None:
        return None
    write = run.summary.write
    assert write is not None
    recovery, stall, drain = read and read.slowest_seconds, write.slowest_seconds, 0.0
    if behind is not None:
        stall, drain = behind.snapshot_seconds, _drains(write)["mean"]
    mtbf = (cost.mtbf_hours or 0.0) * 3600
    now = mtbf and wasted_percent(cost.interval_seconds, stall, recovery or 0.0, mtbf, drain)
    return asdict(cost) | {
        "stall_seconds": stall,
        "recovery_seconds": recovery,
        "young_interval_seconds": max(young_seconds(stall, mtbf), drain) if mtbf else None,
        "wasted_percent_now": now or None,
    }


def _drains(write: PhaseSummary) -> Numbers:
    return _over([part.drain_seconds for part in write.checkpoints])


def _asynchronous(run: CheckpointRun) -> Numbers | None:
    """Return the numbers of asynchronous checkpoints, with the settings that they were once beside."""
    behind, workload, write = run.summary.asynchronous, run.facts.workload, run.summary.write
    if behind is None or write is None:
        return None
    shortest = behind.shortest_interval_seconds
    return asdict(behind) | {
        "safe_seconds": _over([part.safe_seconds for part in write.checkpoints]) | {"mean": behind.safe_seconds},
        "drain_seconds": _drains(write),
        "compute_seconds": max(0.0, workload.checkpoint.time_between_checkpoints),
        "per_hour": 3600 / (shortest / workload.metric.au) if shortest > 0 else math.inf,
        "au_threshold_percent": 100 * workload.metric.au,
    }


# KV cache


def _kv_numbers(frozen: FrozenRun) -> Numbers:
    pytest.importorskip("dlemu.contrib.kvcache")
    from dlemu.contrib.kvcache.analyse import RunRows
    from dlemu.contrib.kvcache.job import JOB
    from dlemu.contrib.kvcache.summary import COLUMNS, KvSummary

    dtype = np.dtype([(name, np.int64) for name in COLUMNS])
    facts = RunFacts(kind="kvcache", **_run_facts(frozen), journal=RunJournal(**_journal(frozen.facts)))
    run = RowsRun("", facts, _structured(frozen.rows("kvcache_prompts"), dtype), _telemetry(frozen), JOB)
    summary: KvSummary = run.summary

    def spread(found: Any, seconds: Any) -> Numbers | None:
        return found and {**asdict(found), "mean": float(seconds.mean()), "max": float(seconds.max())}

    data, settings, was = RunRows(run), frozen.settings, frozen.numbers
    true = {way: getattr(summary, f"{way}_gb_per_second") * 1e9 / 2**30 for way in ("read", "write")}
    official = summary.official and {
        **dict.fromkeys(was["official"], STRUCK),
        **asdict(summary.official),
        **{f"true_{way}_gib_per_second": rate for way, rate in true.items()},
        "option": settings["kv.option"],
        "requests": summary.prompts,
        "true_window_seconds": data.window_seconds,
        "overstated_percent": 100
        * ((summary.official.read_gib_per_second + summary.official.write_gib_per_second) / sum(true.values()) - 1),
    }
    users = settings["kv.users"] * frozen.facts["ranks"] if official else data.rate * settings["kv.think_seconds"]
    return {
        "complete": summary.complete,
        "outcome": summary.outcome,
        "sustained": summary.sustained,
        "backlog": None if summary.sustained is None else data.backlog,
        "prompts": summary.prompts,
        "load_seconds": data.span_seconds,
        "prompts_per_second": summary.prompts_per_second,
        "input_tokens_mean": float(data.prompts["input_tokens"].mean()),
        "users": users,
        "first_token_seconds": spread(summary.ttft_seconds, data.ttft),
        "load_from_storage_seconds": spread(summary.load_times, data.load_seconds),
        "load_by_size_seconds": STRUCK,
        "utilisation_percent": summary.utilisation_percent,
        "gpu_seconds_computed": data.settings.tp * float(data.computed["compute_ns"].sum()) / 1e9,
        "gpu_seconds_won": summary.gpu_seconds_won,
        "break_even_gb_per_second": summary.break_even_gb_per_second,
        "window_seconds": data.window_seconds,
        "read_bytes": data.read_bytes,
        "written_bytes": data.written_bytes,
        "read_gb_per_second": summary.read_gb_per_second,
        "write_gb_per_second": summary.write_gb_per_second,
        "token_bytes": data.settings.token_bytes,
        "block_bytes": data.settings.block_bytes,
        "tokens_from_percent": dict.fromkeys(was["tokens_from_percent"], STRUCK)
        | {"storage": summary.tokens_from_storage_percent},
        "blocks_read": int(data.loaded["storage_blocks"].sum()),
        "blocks_written": int(data.written["written_blocks"].sum()),
        "blocks_evicted": int(data.ranks["evicted"].sum()),
        "from_storage_percent": summary.from_storage_percent,
        "devices": STRUCK,
        "fifo": STRUCK,
        "official": official,
        "ceiling_times": summary.ceiling_times,
        "cpu_seconds_per_gb": summary.cpu_seconds_per_gb,
        "late_p99_ms": float(np.percentile(data.prompts["late_ns"], 99)) / 1e6,
        "cause": summary.limited_by,
        "findings": [],
    }


# Packing


def _pack_numbers(frozen: FrozenRun) -> Numbers:
    pytest.importorskip("dlemu.contrib.pack")
    from dlemu.contrib.pack.job import JOB
    from dlemu.contrib.pack.summary import ADVICE, PackSummary, device_activity
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
        "images_per_file": own["images_per_file"],
        "cpu_seconds": float(rows["cpu_ns"].sum()) / 1e9,
        "skipped": sum(file["damaged"] for file in own["packed_files"]),  # no image is left out any more
        "time_percent": {name: getattr(summary, f"{name}_percent") for name in times},
        "device": device_activity(run, (own["began_ns"], own["ended_ns"])),
        "cause": limit.what,
        "cause_confidence": limit.confidence,
        **dict.fromkeys(("kept_images", "cpu_seconds_per_gb", "host_busy_percent"), STRUCK),
        "findings": [f"advice.{code}" for code, sentence in ADVICE.items() if sentence in limit.advice],
    }


PACK_NUMBERS = (
    *("images", "files", "seconds", "images_per_second", "read_mb_per_second", "write_mb_per_second"),
    *("from_storage_percent", "cpu_percent"),
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
    inputs = SearchInputs(
        probe_mb_per_second=facts["probe_mb_per_second"],
        mb_per_accelerator=facts["mb_per_second_of_an_accelerator"],
        max_accelerators=facts["most_accelerators"],
        max_reason="",
        naive_seconds_per_trial=facts["seconds_of_a_whole_run"],
    )
    question = Question(
        workload="",
        accelerator="",
        threshold_percent=facts["threshold_percent"],
        settings_digest="",
    )
    answer = build_answer(question, inputs, [_trial(trial) for trial in facts["trials"]], refusal=facts["refusal"])
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
        "most_delivered_mb_per_second": max(trial.mb_per_second for trial in answer.trials),
        "storage_mb_per_second": answer.storage_mb_per_second,
        "storage_could_feed": answer.storage_could_feed,
        "naive_seconds": answer.naive_seconds,
        "cause": answer.limited_by.what,
        "findings": _FINDINGS_OF_SIZES.get(answer.limited_by.what, []),
    }


_FINDINGS_OF_SIZES = {"host": ["refused_by_the_host"], "emulator": ["emulator_ceiling"]}
"""Cause of a search -> what its sentence says."""


def _trial(trial: Mapping[str, Any]) -> Trial:
    return Trial(
        folder="",
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
            name: {
                **{side: getattr(value, side).mean for side in ("a", "b")},
                **{f"{side}_half_width": getattr(value, side).half_width for side in ("a", "b")},
                "difference_percent": value.difference_percent,
                "half_width_percent": value.half_width_percent,
                "distinct": value.distinct,
            }
            for name, value in pair.metrics.items()
            if name != _NOT_FROZEN
        }
        | ({} if a.kind == "train" else dict.fromkeys(_RANK0, STRUCK)),
        "days_saved_per_year": pair.plan and pair.plan.days_saved_per_year,
        "findings": [],
    }


_RANK0 = "write_rank0_gib_per_second", "read_rank0_gib_per_second"
_NOT_FROZEN = "au_whole_percent"  # it had another name where runs are compared, which was to go
