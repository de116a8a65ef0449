"""Facts of runs by versions without facts.json, reconstructed from their summary.json and config.yaml."""

from __future__ import annotations

import os
from datetime import datetime

import numpy as np

from datagen.errors import UserError
from datagen.inspection import Dataset
from datagen.layout import layouts
from dlemu.checkpoints.saved import SavedCheckpoint
from dlemu.config import load_received
from dlemu.jobs.training.journal import Journal
from dlemu.jobs.training.measured import Facts
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import make_facts
from dlemu.jobs.training.steplog import STEP_DTYPE
from dlemu.jobs.training.summary import Summary, TelemetrySummary
from dlemu.jobs.training.trainer import RunLog
from dlemu.metrics.rows import Rows
from dlemu.telemetry import DeviceFacts, RecorderHead

OLDER = 0
"""`facts_version` of reconstructed facts. What such runs did not save, as the trials after the run, is missing."""
_MAX_RANKS = 10**6
"""A summary with more is damaged: no run had as many, and each takes memory here."""


def facts_of_older(folder: str, saved: Summary, rows: Rows) -> Facts:
    """Return the facts that a saved summary implies; raises UserError for a damaged one.

    Also if config.yaml is missing or does not load.
    """
    counts = saved.ranks_per_host
    if saved.ranks > _MAX_RANKS or sum(counts) > saved.ranks or min(counts, default=0) < 0:
        raise UserError(f"{folder} is damaged: the ranks per host in its summary don't add up to the run's")
    path = os.path.join(folder, "config.yaml")
    if not os.path.lexists(path):
        raise UserError(
            f"{folder} has neither facts.json nor config.yaml: it is not a complete result of `dlemu train`"
        )
    workload = load_received(path)
    named = (workload.reader.data_loader, workload.dataset.format, workload.storage.storage_type)
    if own := [name for name in named if "." in name]:
        raise UserError(
            f"{folder} was run with {', '.join(own)}: user modules, which are not imported to read a result, and "
            "there is no facts.json: run it again"
        )
    train, valid = layouts(workload.dataset)
    job = TrainingJob(
        workload=workload,
        ranks=saved.ranks,
        found=Dataset(
            spec=workload.dataset,
            train=train,
            valid=valid if valid.num_files else None,
            manifest=None,
            max_file_bytes=0,
            max_sample_bytes=0,
            total_bytes=saved.dataset.total_bytes,
        ),
        seed=saved.seed,
        folder=folder,
        started_at=saved.started_at,
    )
    recorders = tuple(_recorders(saved.telemetry)) if saved.telemetry else ()
    try:
        journal = _journal(saved, rows)
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"{folder} is damaged: its summary gives {saved.ended_at!r} as its end, which is not a time"
        ) from error
    return make_facts(
        job, RunLog(np.empty(0, STEP_DTYPE), journal), saved.failure, facts_version=OLDER, recorders=recorders
    )


def _journal(saved: Summary, rows: Rows) -> Journal:
    """Return the journal that a summary implies; raises ValueError or OverflowError for an impossible end time."""
    metrics, started_ns = saved.metrics, int(rows["free_ns"].min()) if len(rows) else 0
    ended_ns = None if metrics.total_seconds is None else started_ns + round(metrics.total_seconds * 1e9)
    ended_at = datetime.fromisoformat(saved.ended_at).timestamp() if saved.ended_at else None
    return Journal(
        wall_clock_offset_ns=0 if ended_at is None or ended_ns is None else round(ended_at * 1e9) - ended_ns,
        started_ns=started_ns,
        hosts=saved.environment.hosts,
        rank_nodes=tuple(node for node, count in enumerate(saved.ranks_per_host) for _ in range(count)),
        storage=saved.environment.storage,
        ceiling_au_percent=metrics.ceiling_au_percent,
        checkpoints=tuple(
            SavedCheckpoint(
                epoch=checkpoint.epoch,
                block=checkpoint.block,
                bytes=checkpoint.bytes,
                started_ns=checkpoint.started_ns,
                ended_ns=checkpoint.ended_ns,
            )
            for checkpoint in saved.checkpoints
        ),
        eviction_seconds=saved.page_cache.eviction_seconds if saved.page_cache else (),
        stopped_early=saved.stopped_early,
        ended_ns=ended_ns,
        clock_offsets_ns=saved.telemetry.clock_offsets_ns if saved.telemetry else (),
        cpu_seconds=() if metrics.cpu_seconds is None else (metrics.cpu_seconds,),
    )


def _recorders(telemetry: TelemetrySummary) -> list[RecorderHead]:
    hosts = [recorder.host for recorder in telemetry.recorders]
    return [
        RecorderHead(
            host=recorder.host,
            node=node,
            boot_id=f"host {hosts.index(recorder.host)}",
            interval_seconds=telemetry.interval_seconds,
            probes=telemetry.probes,
            devices=tuple(
                DeviceFacts(**{name: getattr(device, name) for name in DeviceFacts.__dataclass_fields__})
                for device in telemetry.devices
                if device.host == recorder.host
            ),
            notes=telemetry.notes,
            cpu_seconds=recorder.cpu_percent or 0.0,  # in the 100 seconds below
            seconds=100.0,
        )
        for node, recorder in enumerate(telemetry.recorders)
    ]
