"""The first lines of a KV-cache run's screen and page, and its conditions; its metrics follow from `KvSummary`."""

from __future__ import annotations

from dlemu.contrib.kvcache.job import JOB
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import KvSummary, Limit
from dlemu.extend import cache as page_cache
from dlemu.extend import rows_job
from dlemu.report.screen import Said, Screen
from dlemu.report.units import number
from dlemu.results.figures import Conditions
from dlemu.results.measured import RunFacts
from dlemu.results.wording import TRADEMARK, count

_LIMITS: dict[Limit, str] = {
    "storage": "prompts wait for blocks longer than they compute; try faster storage, or a lighter load",
    "accelerators": "prompts wait for accelerators, not for blocks: this storage can serve more of them",
    "page cache": "memory served most of the reads: set kv.odirect=true, and a load larger than memory",
    "emulator": "this host is too busy for this load: use more cores, or a lighter load",
    "arrivals": "all requests were served: try more kv.users",
}
_REHEARSAL = f"A rehearsal: kv-cache.py did not run. CLOSED results come from mlpstorage, unchanged. {TRADEMARK}"


def _screen(summary: KvSummary, folder: str) -> Screen:
    official, notes = summary.official, list(summary.issues)
    title = f"{summary.workload}: KV cache on storage, {count(summary.ranks, 'rank')}"
    if summary.environment.storage is not None:
        title += f", on {summary.environment.storage.folder}"
    if official is not None:
        title = f"MLPerf Storage kv_cache, {summary.arrivals}: {title}"
        notes.append(_REHEARSAL)
    if not summary.complete or summary.outcome == "fail":
        answer = Said("answer", summary.verdict, tone="bad")
    else:
        answer = Said("answer", summary.verdict, tone="open" if summary.outcome == "no verdict" else "strong")
    moved = f"{number(summary.read_gb_per_second)} GB/s read, {number(summary.write_gb_per_second)} GB/s written"
    times = summary.ceiling_times
    ceiling = f"the emulator alone can move {times:.0f} times as much" if times else ""
    lines = [answer, Said("moves", moved, ceiling)]
    if summary.limited_by is not None:
        lines.append(Said("limit", f"{summary.limited_by}: {_LIMITS[summary.limited_by]}"))
    return Screen(title=title, lines=lines, notes=notes, folder=folder)


def conditions(summary: KvSummary, facts: RunFacts) -> Conditions:
    served, settings = summary.from_storage_percent, facts.workload.section(KvSettings)
    return Conditions(
        title=f"KV cache of {summary.workload}",
        facts={"folder": facts.workload.storage.resolved(settings.folder)},
        work={"arrivals": summary.arrivals, "block_bytes": settings.block_bytes, "block_tokens": settings.block_tokens},
        how={"odirect": settings.odirect, "threads": settings.threads, "ranks": summary.ranks},
        from_memory=("run",) if served is not None and served < page_cache.NOT_READ_PERCENT else (),
        warnings=summary.issues,
    )


PARTS = rows_job.rows_parts(
    JOB,
    judged="load_p95_seconds",
    note="Latencies count from a prompt's arrival; a load that is not sustained has none.",
    conditions=conditions,
    limited_by=lambda summary: summary.limited_by,
    screen=_screen,
)
