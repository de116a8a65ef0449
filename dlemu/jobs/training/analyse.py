"""Computes the summary of a training run from step rows, telemetry and facts; dlemu.metrics.verdict has the terms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np

from datagen.layout import subfolder_name
from dlemu.jobs.training import activity
from dlemu.jobs.training.measured import MeasuredTraining
from dlemu.jobs.training.scaling import explain_loss, preprocessing_sleeps
from dlemu.jobs.training.steplog import EVALUATION
from dlemu.jobs.training.summary import (
    AsynchronousCheckpoints,
    CheckpointTiming,
    Evaluation,
    Metrics,
    PageCache,
    Summary,
)
from dlemu.jobs.training.wording import issue_lines, limit_in_words, recording_notes, verdict_line
from dlemu.metrics import au, cache, rates
from dlemu.metrics.changes import find_unsteadiness
from dlemu.metrics.demand import sample_divisor
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.limit import MIN_LOSS_PERCENT, Limit, Scaling, judge_limit
from dlemu.metrics.loss import loss_percent
from dlemu.metrics.rows import Rows, StepTable, has_nonzero, sum_of
from dlemu.metrics.stragglers import find_slow_folders, find_stragglers
from dlemu.metrics.verdict import HOST_LIMITS, Evidence, is_biased, judge
from dlemu.ranks import name_ranks
from dlemu.results.measured import common_fields
from dlemu.results.parts import summarise_requests


def analyse(run: MeasuredTraining) -> Summary:
    """Return the summary of a run, computed in this order: metrics, page cache, limit, findings, verdict."""
    facts, journal, rows = run.facts, run.facts.journal, run.training
    plan, workload, settings = facts.train_plan, facts.workload, facts.workload.metric
    kept = au.kept_rows(rows, settings.exclude_start_steps, settings.exclude_end_steps)  # the steps that count
    read_by_devices = activity.delivered_by_devices(run, "read_mb_per_second")
    device_mb_per_second, delivered_percent = cache.device_metrics(rows, read_by_devices)
    metrics = _metrics(run, kept, device_mb_per_second)
    proof = cache.prove(  # how much came from storage, not from the page cache, by the kernel's counters
        rows,
        file_system=journal.storage.file_system if journal.storage else "",
        bypassed=workload.reader.odirect or workload.reader.evict_page_cache == "epochs",
        would_help=" or ".join(cache.past_the_cache(workload)),
        dataset_bytes=facts.total_bytes,
        memory_bytes=sum(host.memory_bytes for host in journal.hosts),
    )
    served_percent = cache.served_by_storage(rows, proof.from_storage_percent, delivered_percent)  # by devices, too
    evidence = _evidence(run, kept, metrics, served_percent)
    other_program = _other_program(run, metrics, proof)
    judged = rows if is_biased(evidence) else kept  # biased: many batches of the kept steps were read before them
    limit = _limit(run, judged, proof, other_program)
    candidates = (proof.finding, other_program, *_uneven_performance(run, kept, limit), *_lost_measurements(run))
    shown_with_limit = limit.findings if limit else ()
    findings = tuple(finding for finding in candidates if finding is not None and finding not in shown_with_limit)
    verdict = judge(evidence, limit.what if limit else "")
    notes = (*workload.notes, *facts.notes, *recording_notes(workload.recorded, facts.ranks))
    stopped = journal.stopped_after_steps is not None
    evaluations = run.ordered.of("phase", (EVALUATION,))
    evaluation = Evaluation(rates.training_ns(evaluations) / 1e9, sum_of(evaluations, "samples"))
    return Summary(
        **common_fields(facts),
        outcome=verdict.outcome,
        verdict=verdict_line(verdict, facts.ranks),
        verdict_code=verdict.code,
        accelerator=workload.accelerator or None,
        scale=workload.scale or None,
        sample_divisor=sample_divisor(workload),
        metrics=metrics,
        loss_percent=loss_percent(rows, kept) if len(rows) else None,
        limited_by=limit_in_words(limit, findings, facts.ranks) if limit else None,
        page_cache=PageCache(proof.from_storage_percent, served_percent) if len(rows) else None,
        requests=summarise_requests(journal.requests) if journal.requests else None,
        evaluation=evaluation if len(evaluations) else None,
        checkpoints=msgspec.convert(journal.checkpoints, tuple[CheckpointTiming, ...], from_attributes=True),
        asynchronous_checkpoints=_asynchronous_checkpoints(run),
        each_sample_once=tuple(
            cache.each_sample_once(plan, epoch.number, epoch.steps, rows.of("epoch", (epoch.number,)), stopped=stopped)
            for epoch in (facts.schedule if len(rows) else ())
        ),
        data_folder=workload.dataset.data_folder,
        telemetry=activity.summarise_telemetry(run),
        issues=(*notes, *issue_lines(findings)),
        findings=findings,
    )


def _metrics(run: MeasuredTraining, kept: StepTable, device_mb_per_second: rates.Mean) -> Metrics:
    """Return the metrics; if no training step was measured, only those from the settings and the journal."""
    facts, journal, rows = run.facts, run.facts.journal, run.training
    settings = facts.workload.metric
    total_seconds = (journal.ended_ns - journal.started_ns) / 1e9 if journal.ended_ns else None
    cpu_seconds = sum(journal.cpu_seconds)
    app_bytes = sum_of(rows, "app_bytes")
    metrics = Metrics(
        ceiling_au_percent=journal.ceiling_au_percent,
        au_threshold_percent=100 * settings.au,
        total_seconds=total_seconds,
        cpu_seconds_per_gb=cpu_seconds / (app_bytes / 1e9) if cpu_seconds and app_bytes else None,
        steps_per_epoch=tuple(epoch.steps for epoch in facts.schedule),
    )
    if not len(rows):
        return metrics
    block_megabytes = activity.delivered_by_devices(run, "read_mb_per_second", probe="block")
    block_requests = activity.delivered_by_devices(run, "reads_per_second", probe="block")
    computed_ns = rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"]  # when the computation ended
    dlio = au.au_dlio_percents(rows, settings.exclude_start_steps, settings.exclude_end_steps)
    return replace(
        metrics,
        au_percent=rates.pooled(kept, au.au_percent),
        au_sustained_percent=au.sustained_au(rows, kept),
        au_uncertainty=au.uncertainty_of(rows, kept),
        prefetch_credit_percent=au.prefetch_credit_percent(rows, kept),
        au_whole_percent=rates.pooled(rows, au.au_percent),
        au_dlio_percent=rates.over_epochs([v2 for v2, _ in dlio]),
        au_dlio_v1_percent=rates.over_epochs([v1 for _, v1 in dlio]),
        samples_per_second=_rate(rows, "samples", 1),
        app_mb_per_second=_rate(rows, "app_bytes", 1e6),
        app_bytes=app_bytes,
        device_request_kib=cache.device_request_kib(rows, block_megabytes, block_requests),
        samples=sum_of(rows, "samples"),
        training_seconds=rates.training_ns(rows) / 1e9,
        time_to_first_batch_seconds=rates.first_batch_seconds(rows),
        wait_ms=rates.percentiles_ms(kept["wait_ns"]),
        host_oversleep_ms=rates.percentiles_ms(rows["slept_ns"] - computed_ns),
        device_mb_per_second=device_mb_per_second,
    )


def _rate(rows: Rows, column: str, unit: float) -> rates.Mean:
    """Return the sum of a column, in `unit`s per second of training: of the whole run, and of each epoch."""
    return rates.pooled(rows, lambda part: rates.per_second(float(sum_of(part, column)) / unit, part))


def _asynchronous_checkpoints(run: MeasuredTraining) -> AsynchronousCheckpoints | None:
    """Return how long steps of rank 0 took while checkpoints were written, and otherwise; None without any."""
    asynchronous = [saved for saved in run.facts.journal.checkpoints if saved.released_ns is not None]
    if not asynchronous:
        return None
    rows = run.training.of("rank", (0,))
    seconds = (rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"]) / 1e9
    # The first step of a block is left out: its prefetch queue was filled while training stalled, or is empty.
    is_typical = rows["step"] > 1
    is_typical[1:] &= np.diff(rows["block"]) == 0
    is_writing, free_ns = np.zeros(len(rows), bool), rows["free_ns"]
    for saved in asynchronous:
        is_writing |= (free_ns >= (saved.released_ns or 0)) & (free_ns < saved.ended_ns)
    during, otherwise = seconds[is_writing & is_typical], seconds[~is_writing & is_typical]
    return AsynchronousCheckpoints(
        step_seconds_during=float(during.mean()) if len(during) else None,
        step_seconds_otherwise=float(otherwise.mean()) if len(otherwise) else None,
    )


def _evidence(run: MeasuredTraining, kept: StepTable, metrics: Metrics, served_percent: float | None) -> Evidence:
    """Return what the verdict is computed from."""
    facts, settings, ahead = run.facts, run.facts.workload.metric, run.facts.batches_ahead
    counted_au = metrics.au_percent.mean if metrics.au_percent else None
    excluded = settings.exclude_start_steps + settings.exclude_end_steps
    counted = [max(0, block.steps - excluded) for epoch in facts.schedule for block in epoch.blocks]
    uneven_percent = loss_percent(kept, kept).uneven_computation if counted_au else 0.0
    steps, length = sum(metrics.steps_per_epoch), ("train.epochs", len(facts.schedule))
    if steps == facts.workload.train.total_training_steps:  # which ends the run; a verdict asks for 110 times at most
        length = f"train.epochs={110 * len(facts.schedule)} train.total_training_steps", steps
    return Evidence(
        complete=facts.failure is None,
        threshold_percent=100 * settings.au,
        by=settings.verdict,
        au=counted_au,
        au_sustained=metrics.sustained_percent,
        au_whole=metrics.au_whole_percent.mean if metrics.au_whole_percent else None,
        au_without_waits=100 * counted_au / (counted_au + uneven_percent) if counted_au else None,
        uncertainty_percent=metrics.au_uncertainty.expanded_percent if metrics.au_uncertainty else None,
        length=length,
        from_storage_percent=served_percent,
        cached=settings.cached,
        reads=bool(metrics.app_bytes),
        # With tensors the ceiling includes collation, which limits the real job, too.
        ceiling_au=metrics.ceiling_au_percent if not facts.workload.reader.tensors else None,
        supply_known=au.is_supply_known(run.training),
        kept_steps=sum(counted) // len(counted),
        # The trainer holds one batch more, which it takes off the loader while a step computes.
        prefetched_steps=ahead + 1 if ahead and not facts.workload.train.synchronous else ahead,
    )


def _lost_measurements(run: MeasuredTraining) -> Iterator[Finding]:
    """Yield a finding for each host of a failed run that lost steps of its ranks, and for each that lost telemetry."""
    journal, code = run.facts.journal, Code.MEASUREMENT_INCOMPLETE
    if run.facts.failure is not None and len(run.rows):
        measured_ranks = set(run.ordered.values("rank"))
        for node, host in enumerate(journal.hosts):
            lost = [rank for rank, at in enumerate(journal.rank_nodes) if at == node and rank not in measured_ranks]
            if lost:
                yield Finding.of(code, "caution", pattern="steps", of_ranks=name_ranks(lost), host=host.host)
    for node in journal.lost_recorders:  # killed or suspended, so telemetry does not cover the whole training
        yield Finding.of(code, "caution", pattern="telemetry", host=journal.hosts[node].host)


def _other_program(run: MeasuredTraining, metrics: Metrics, proof: cache.CacheProof) -> Finding | None:
    """Return a finding if the devices delivered much more than the kernel fetched for the run, read-ahead included."""
    rate, seconds = metrics.device_mb_per_second, metrics.training_seconds
    if rate is None or not rate.mean or not seconds or proof.from_storage_percent.mean is None:
        return None
    delivered_mb, own_mb = rate.mean * seconds, float(sum_of(run.training, "storage_bytes")) / 1e6
    if run.facts.journal.stopped_after_steps is not None:  # batches were read ahead that have no rows
        own_mb *= 1 + run.facts.batches_ahead * run.facts.ranks / max(1, len(run.training))
    others_mb = delivered_mb - own_mb
    percent = 100 * others_mb / delivered_mb
    if percent < 20:  # may be metadata, or reads before and after the run
        return None
    return Finding.of(Code.OTHER_PROGRAM_ON_DRIVE, "caution", mb_per_second=others_mb / seconds, percent=percent)


def _limit(run: MeasuredTraining, judged: Rows, proof: cache.CacheProof, other_program: Finding | None) -> Limit | None:
    """Return what limited the steps in `judged`; None if they have no computation."""
    if not has_nonzero(judged, "compute_ns"):
        return None
    facts, reader = run.facts, run.facts.workload.reader
    deeper_queue = None
    causes, work = explain_loss(facts.workload, judged, facts.ranks)
    if causes.total >= MIN_LOSS_PERCENT:
        from dlemu.jobs.training.deeper_queue import find_deeper_queue  # simulates the run

        deeper_queue = find_deeper_queue(run, work.wanted_mb_per_second)
    ceiling, from_storage = facts.journal.ceiling_au_percent, proof.from_storage_percent.mean
    context = replace(
        activity.activity_during(run, judged),
        ceiling_au=math.nan if ceiling is None else ceiling,
        collates=reader.tensors > 0,
        scaling=facts.journal.scaling or Scaling(),
        read_threads=reader.read_threads,
        from_storage_percent=math.nan if from_storage is None else from_storage,
        other_program=other_program,
        io_depth=reader.io_depth if facts.journal.requests else 0,
        deeper_queue=deeper_queue,
    )
    return judge_limit(au.au_percent(judged), causes, work, context)


def _uneven_performance(run: MeasuredTraining, kept: StepTable, limit: Limit | None) -> Iterator[Finding]:
    """Yield findings on storage that varies over time or among folders, a hot drive, and slow ranks and hosts."""
    if not len(run.training):
        return
    facts, journal = run.facts, run.facts.journal
    limited_by = limit.what if limit else "nothing"
    if limited_by not in HOST_LIMITS:  # else rates depend on the readers' cores, and say nothing about the storage
        yield from find_unsteadiness(run.training, preprocesses=preprocessing_sleeps(facts.workload, run.training))
        folders = facts.workload.dataset.num_subfolders_train
        names = [subfolder_name(folder, folders) for folder in range(folders)]
        yield from find_slow_folders(run.training, facts.train_plan, names)
    if limited_by == "storage" and (hot := activity.find_hot_drive(run, kept)):
        yield hot
    yield from find_stragglers(kept, journal.rank_nodes, [host.host for host in journal.hosts])
