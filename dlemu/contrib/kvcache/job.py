"""The job of KV-cache offload: each rank measures its ceiling, replays its prompts, and logs a row for each prompt."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import lru_cache
from typing import ClassVar

from dlemu.config import check_folder
from dlemu.config.schema import Workload
from dlemu.contrib.kvcache import run_folder
from dlemu.contrib.kvcache.analyse import analyse
from dlemu.contrib.kvcache.load import make_load
from dlemu.contrib.kvcache.mover import Blocks, Mover
from dlemu.contrib.kvcache.official import RankTurns, TurnsReplay, draw_turns, with_option_defaults
from dlemu.contrib.kvcache.plan import RankPlan, assign_prompts, plan_rank
from dlemu.contrib.kvcache.replay import Replay
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import COLUMNS, RANK_ROW, KvSummary, Row
from dlemu.extend import BulkContent, Comm, Doing, Job, Notify, UserError, environment, owned, rows_job, storage_base
from dlemu.extend import thread_accounting as accounting
from dlemu.results.live import Progress
from dlemu.results.wording import count

_NOT_REMOVED = "blocks that can't be removed are left in {}"
_PROGRESS_REPORTS = 100  # number of progress reports of a run
_START_NS = 50_000_000  # delay between the time when all ranks are ready and the beginning of the load
_FILLED_SHARE = 0.95  # share of the free space that MLPerf Storage's kv_cache tool fills
_CEILING_THREADS = 16  # enough without storage latency: 17 to 43 GB/s on two busy cores (docs/kvcache.md, section 4)
_CEILING_BATCHES = 64  # maximum number of batches in progress while the ceiling is measured


class KvCacheKind(rows_job.JobKind):
    """Prompts served by emulated accelerators, with the KV cache on storage."""

    name = "kvcache"
    prefix = "kvcache-"
    columns: ClassVar[Mapping[str, str]] = COLUMNS
    summary_type = KvSummary

    def complete(self, workload: Workload) -> Workload:
        settings = workload.section(KvSettings)
        check_folder(workload, "kv.folder", settings.folder)
        if settings.is_official:
            return replace(workload, kinds={**workload.kinds, "kv": asdict(with_option_defaults(settings))})
        if not settings.layers:
            raise UserError(
                f"workload {workload.model.name!r} serves no model: wanted one that does, as in `dlemu kvcache "
                "workload=llama3_1_8b scale=laptop`, or your own kv.layers, kv.kv_heads and kv.parameters_billion"
            )
        return workload

    def looks_at(self, workload: Workload) -> str:
        return f"kv.folder {workload.section(KvSettings).folder}"

    def plan(self, workload: Workload, ranks: int, *, wants_verdict: bool) -> Job:
        settings = workload.section(KvSettings)
        files = settings.tp * max(len(plan.sizes) for plan in plans_of(settings, ranks))
        if files > run_folder.MAX_FILES:
            instead = "fewer kv.users" if settings.is_official else "a larger kv.block_tokens"
            raise UserError(
                f"a rank would write {files:,} files: wanted {run_folder.MAX_FILES:,} at most; set {instead}, more "
                "ranks, or a shorter load"
            )
        return super().plan(workload, ranks, wants_verdict=wants_verdict)

    def made_folder(self, job: Job) -> str | None:
        return run_folder.blocks_folder(job) if run_folder.is_local(job) else None

    def begin(self, job: Job) -> None:
        run_folder.create_run_folder(job)

    def check_host(self, job: Job, local_ranks: int) -> None:
        peak_bytes = sum(plan.peak_bytes for plan in plans_of(job.workload.section(KvSettings), job.ranks))
        run_folder.check_space(job, peak_bytes * local_ranks // job.ranks)

    def watched_folders(self, job: Job) -> Iterator[str]:
        if run_folder.is_local(job):
            yield environment.existing_folder(run_folder.blocks_folder(job))

    def clean_up(self, job: Job) -> str:
        return "" if run_folder.remove_run(job, failed=True) else _NOT_REMOVED.format(run_folder.run_folder(job))

    def clean_up_elsewhere(self, job: Job) -> None:
        # A folder that another host created may still be used by that host.
        if run_folder.host_claim() in owned.claimed(run_folder.run_folder(job)):
            run_folder.remove_run(job, failed=True)

    def measure(self, job: Job, comm: Comm, log: rows_job.RowLog, notify: Notify | None) -> None:
        settings = job.workload.section(KvSettings)
        plan, bulk = plans_of(settings, job.ranks)[comm.rank], BulkContent(job.seed)
        rank_row = Row(prompt=RANK_ROW, accelerators=plan.accelerators)
        rank_row.ceiling_per_hour = measure_ceiling(plan, bulk, job.workload.metric.ceiling_seconds, notify)
        if comm.local_rank == 0:  # `begin` created the folder on one host, and the hosts may not share kv.folder.
            run_folder.create_run_folder(job)
        comm.all_reduce_max(0)  # A barrier: the folder exists now, so ranks can create theirs in it.

        def log_row(row: Row) -> None:
            log.add(**vars(row) | {"rank": comm.rank})

        def report(arrived: int) -> None:
            if notify is not None and arrived % max(1, len(plan) // _PROGRESS_REPORTS) == 0:
                total = len(plan) if settings.loop == "open" else 0  # In a closed loop, the number is not known before.
                notify(Progress(at=f"{count(arrived, 'prompt')} of rank 0 arrived", done=arrived, total=total))

        with run_folder.created_rank_folder(job, comm.rank, len(plan.sizes)) as folder:
            storage = storage_base.open_storage(run_folder.storage_spec_of(job))
            blocks = Blocks(storage, folder, bulk, comm.rank, settings, plan.sizes)
            with closing(Mover(blocks, seconds=job.workload.timeout_seconds)) as mover:
                comm.all_reduce_max(0)  # A barrier: all ranks begin together.
                replay: Replay | TurnsReplay
                if isinstance(plan, RankPlan):
                    replay = Replay(plan, mover, on_served=log_row)
                else:
                    capacity_bytes = settings.capacity_gb * 1e9
                    if not capacity_bytes:
                        free_bytes = storage.free_bytes(folder)
                        capacity_bytes = math.inf if free_bytes is None else _FILLED_SHARE * free_bytes / job.ranks
                    replay = TurnsReplay(plan, mover, on_served=log_row, capacity_bytes=capacity_bytes)
                cpu_ns, storage_bytes = time.process_time_ns(), accounting.process_storage_bytes()
                rank_row.arrived_ns = time.monotonic_ns() + _START_NS
                replay.run(rank_row.arrived_ns, report)
                rank_row.cpu_ns = time.process_time_ns() - cpu_ns
                rank_row.storage_bytes = accounting.process_storage_bytes() - storage_bytes
                rank_row.evicted = replay.evicted
                for row in (*replay.unfinished, rank_row):
                    log_row(row)
        comm.all_reduce_max(0)
        # One rank of each host removes the run's folder, as hosts may not share kv.folder; in an object store, rank 0.
        is_remover = comm.local_rank == 0 if run_folder.is_local(job) else comm.rank == 0
        if is_remover and not run_folder.remove_run(job) and notify is not None:
            notify(Doing(_NOT_REMOVED.format(run_folder.run_folder(job))))

    def summarise(self, run: rows_job.RowsRun) -> KvSummary:
        return analyse(run)


JOB = KvCacheKind()


@lru_cache(1)
def plans_of(settings: KvSettings, ranks: int) -> Sequence[RankPlan | RankTurns]:
    """Return the plan of each rank; cached, so that forked ranks inherit the plans."""
    if settings.is_official:
        return [draw_turns(settings, rank) for rank in range(ranks)]
    load = make_load(settings, ranks)
    return [plan_rank(settings, prompts) for prompts in assign_prompts(settings, load, ranks)]


def measure_ceiling(plan: RankPlan | RankTurns, bulk: BulkContent, seconds: float, notify: Notify | None) -> int:
    """Return the prompts per hour that this rank could load and write if storage took no time; 0 if not measured."""
    if not seconds or not len(plan):
        return 0
    if notify is not None:
        notify(Doing("measuring the emulator's own ceiling"))
    settings = replace(plan.settings, threads=min(plan.settings.threads, _CEILING_THREADS))
    null_storage = storage_base.open_storage(storage_base.NULL_STORAGE)
    # The timeout never expires, because null storage never hangs.
    with closing(Mover(Blocks(null_storage, "", bulk, 0, settings, plan.sizes), seconds=seconds + 60)) as mover:
        begin_ns, served, in_progress = time.monotonic_ns(), 0, 0
        until_ns = begin_ns + round(seconds * 1e9)
        for batches in itertools.chain.from_iterable(plan.batches() for _ in itertools.count()):  # again and again
            for batch in batches:
                if batch.blocks:
                    mover.submit(batch)
                    in_progress += 1
            served += 1
            while in_progress > _CEILING_BATCHES and mover.wait(until_ns) is not None:
                in_progress -= 1
            if time.monotonic_ns() >= until_ns:
                break
        while in_progress and mover.wait(time.monotonic_ns() + 10**10) is not None:  # 10 s: far longer than they take
            in_progress -= 1
        return round(3600e9 * served / (time.monotonic_ns() - begin_ns))
