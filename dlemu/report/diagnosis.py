"""Why the number is what it is: loss shares, limit, stragglers and the page-cache proof, as parts of summary.json."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from dlemu.config.duration import is_zero
from dlemu.emulator.job import Job
from dlemu.emulator.journal import Journal
from dlemu.emulator.run import RunLog
from dlemu.emulator.steplog import TRAINING, StepRows
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.metrics.cache import CacheProof, prove
from dlemu.metrics.causes import find_causes, work_of
from dlemu.metrics.limit import Circumstances, Limit, judge_limit
from dlemu.metrics.loss import kept_loss_percent, loss_percent
from dlemu.metrics.stragglers import find_stragglers
from dlemu.report.watched import watched


def diagnose(job: Job, log: RunLog | None, *, flattered: bool) -> dict[str, Any]:
    """Return the parts of the summary that say why.

    `flattered`: so many of the counted batches may have been read during first steps that these must be judged too.
    """
    rows = None if log is None else log.rows[log.rows["phase"] == TRAINING]
    if log is None or rows is None or not len(rows):
        return {
            "loss_percent": {},
            "kept_loss_percent": {},
            "loss_percent_per_epoch": [],
            "limited_by": None,
            "stragglers": [],
            "page_cache": None,
        }
    settings = job.workload.metric
    kept = kept_rows(rows, settings.exclude_start_steps, settings.exclude_end_steps)
    proof = _proof(job, log.journal, rows)
    hosts = [host.host for host in log.journal.hosts]
    return {
        "loss_percent": loss_percent(rows, kept),
        "kept_loss_percent": kept_loss_percent(kept),
        "loss_percent_per_epoch": [
            loss_percent(rows[rows["epoch"] == epoch], kept[kept["epoch"] == epoch])
            for epoch in np.unique(rows["epoch"])
        ],
        "limited_by": _limit(job, log, rows, kept, proof, flattered),
        "stragglers": [asdict(one) for one in find_stragglers(kept, log.journal.rank_nodes, hosts)],
        "page_cache": _page_cache(proof, log.journal),
    }


def _limit(
    job: Job, log: RunLog, rows: StepRows, kept: StepRows, proof: CacheProof, flattered: bool
) -> dict[str, Any] | None:
    judged = rows if flattered else kept
    if not len(judged) or not judged["compute_ns"].any():
        return None
    reader = job.workload.reader
    preprocesses, workers = not is_zero(reader.preprocess_time), job.ranks * max(1, reader.read_threads)
    seen = watched(log, judged)
    around = Circumstances(
        ceiling_au=log.journal.ceiling_au_percent,
        host_busy_percent=_own_cpu_percent(log.journal) if seen.busy_percent is None else seen.busy_percent,
        own_busy_percent=seen.own_percent if seen.busy_percent is not None else None,
        cpu_limit_cores=seen.cpu_limit_cores,
        cpu_limit_used_percent=seen.cpu_limit_used_percent,
        memory_some_percent=seen.memory_some_percent,
        device=seen.device,
        scaling=log.journal.scaling,
        read_threads=reader.read_threads,
        from_storage_percent=proof.percent,
    )
    causes = find_causes(judged, preprocesses=preprocesses, workers=workers)
    work = work_of(judged, preprocesses=preprocesses, workers=workers)
    limit = judge_limit(au_percent(judged), causes, work, around)
    return _told(limit, with_first_steps=flattered)


def _told(limit: Limit, *, with_first_steps: bool) -> dict[str, Any]:
    evidence = list(limit.evidence)
    if with_first_steps:
        evidence.append("judged with the first steps, during which batches of later ones were read ahead")
    return asdict(limit) | {"evidence": evidence, "advice": list(limit.advice)}


def _own_cpu_percent(journal: Journal) -> float | None:
    """Return how much of the hosts' cores the run itself used."""
    cores: float = sum(min(host.cpu_usable, host.cpu_limit or math.inf) for host in journal.hosts)
    if not cores or not journal.cpu_seconds or not journal.ended_ns:
        return None
    return 100.0 * sum(journal.cpu_seconds) * 1e9 / (cores * max(1, journal.ended_ns - journal.started_ns))


def _proof(job: Job, journal: Journal, rows: StepRows) -> CacheProof:
    return prove(
        rows,
        file_system=journal.storage.file_system if journal.storage else "",
        odirect=job.workload.reader.odirect,
        evicted=job.workload.reader.evict_page_cache == "epochs",
        dataset_bytes=job.found.total_bytes,
        memory_bytes=sum(host.memory_bytes for host in journal.hosts),
    )


def _page_cache(proof: CacheProof, journal: Journal) -> dict[str, Any]:
    return {
        "from_storage_percent": {"mean": proof.percent, "per_epoch": list(proof.per_epoch)},
        "dataset_to_memory_ratio": proof.dataset_to_memory,
        "eviction_seconds": list(journal.eviction_seconds),
        "warning": proof.warning,
    }
