"""The result of a run of KV-cache offload as text: tables and sentences for the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.contrib.kvcache.job import JOB
from dlemu.contrib.kvcache.summary import KvSummary
from dlemu.extend import Outcome, RowsRun, rows_parts
from dlemu.metrics.cache import IN_MEMORY, NOT_READ_PERCENT
from dlemu.metrics.catalogue import RUN
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Section, Table, Tone, Words, columns
from dlemu.report.units import number, size
from dlemu.results.compared import Conditions
from dlemu.results.wording import TRADEMARK, count

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure

_OFFICIAL_NOTE = "This load is a rehearsal: kv-cache.py did not run. CLOSED results come from mlpstorage, unchanged."


def _screen(summary: KvSummary, folder: str) -> Screen:
    limit, notes = summary.limited_by, list(summary.issues)
    lines = [Said("answer", summary.verdict, tone=_tone(summary)), *_moved(summary), *_times(summary)]
    if limit is not None:
        why = f": {limit.evidence[0]}" if limit.evidence else ""
        lines.append(Said("limit", f"{limit.what}{why}"))
    if summary.official is not None:
        notes.append(_OFFICIAL_NOTE)
    return Screen(title=f"{_title(summary)}, in {summary.what.folder}", lines=lines, notes=notes, folder=folder)


def _moved(summary: KvSummary) -> Iterator[Said]:
    if summary.official is None:
        times = summary.ceiling_times
        ceiling = f"; the emulator alone can move {times:.0f} times as much" if times else ""
        moved = f"{number(summary.read_gb_per_second)} GB/s read, {number(summary.write_gb_per_second)} GB/s written"
        yield Said("moves", moved + ceiling)


def _times(summary: KvSummary) -> Iterator[Said]:
    for label, times, what in (
        ("TTFT", summary.ttft_seconds, "to the first token"),
        ("load", summary.load_times, "to a prompt's last block"),
    ):
        if times is not None:
            yield Said(label, f"p95 {number(times.p95)} s, median {number(times.p50)} s", what)


def _sections(summary: KvSummary, _: str) -> Iterator[Section]:
    if summary.limited_by:
        yield Words(f"Limited by: {summary.limited_by.what}", summary.limited_by.evidence)
    yield _table(summary)
    yield from _classes(summary)
    if summary.official is not None:
        yield Words("MLPerf Storage", (_OFFICIAL_NOTE, TRADEMARK))


def _charts(run: RowsRun, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.contrib.kvcache.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, run)


def _tone(summary: KvSummary) -> Tone:
    if not summary.complete or summary.outcome == "fail":
        return "bad"
    tones: dict[Outcome, Tone] = {"pass": "good", "no verdict": "open"}
    return "strong" if summary.outcome is None else tones.get(summary.outcome, "open")


def _title(summary: KvSummary) -> str:
    if summary.official is not None:
        return f"MLPerf Storage kv_cache, option {summary.official.option}: {count(summary.ranks, 'rank')}"
    scale = f" (scale {summary.scale})" if summary.scale else ""
    return f"{summary.workload}{scale}: KV cache on storage, {count(summary.ranks, 'rank')}"


def _table(summary: KvSummary) -> Table:
    rows = [*_load_rows(summary)]
    for metric in PARTS.catalogue:
        if (value := getattr(summary, metric.name)) is not None:
            rows.append((metric.title, f"{number(value)} {metric.unit}", metric.meaning))
    return Table(title=_title(summary), columns=columns("metric", "value", "what it is", whole=(0,)), rows=rows)


def _load_rows(summary: KvSummary) -> Iterator[tuple[str, str, str]]:
    what, official = summary.what, summary.official
    shrunk = f", 1/{what.shrink} of it as stored" if what.shrink > 1 else ""
    if official is not None:
        yield "bytes per token", f"{what.token_bytes:,}", f"{official.model}{shrunk}; one file per turn"
        yield "users", f"{official.users:,}", "per rank; they send requests, served or not"
        late = f"{official.late:,} of them after the clock had stopped"
        yield "requests served", f"{official.served:,}", f"of {official.requests:,} requested; {late}"
    else:
        shards = f" in {what.tp} shards" if what.tp > 1 else ""
        block = f"block of {what.block_tokens} tokens: {size(what.block_bytes)}{shards}{shrunk}"
        yield "bytes per token", f"{what.token_bytes:,}", block
        rate = f"in {number(summary.load_seconds)} s, {what.trace or 'random'}, speed {what.speed:g}"
        yield "prompts", f"{summary.prompts:,}", f"{rate}; {summary.input_tokens_mean:,.0f} tokens each, mean"
        yield "accelerators", f"{summary.accelerators:,}", f"emulated; of {summary.users:,.0f} users"
    over = f"over {number(summary.window_seconds)} s, to the last byte"
    yield "blocks read", f"{summary.blocks_read:,}", f"{size(summary.read_bytes)} {over}"
    gone = f"; {summary.evicted:,} evicted, {summary.dropped:,} of them never written" if summary.evicted else ""
    yield "blocks written", f"{summary.blocks_written:,}", f"{size(summary.written_bytes)} {over}{gone}"


def _classes(summary: KvSummary) -> Iterator[Table]:
    rows = [
        (
            f"{number(one.from_mb)} to {number(one.to_mb)}",
            f"{one.loads:,}",
            *(number(value) for value in (one.seconds.p50, one.seconds.p95, one.seconds.p99, one.seconds.max)),
        )
        for one in summary.loads_by_size
    ]
    if rows:
        head = columns("MB read", "loads", "p50 s", "p95 s", "p99 s", "max s", right=range(1, 6))
        yield Table(title="Loads by size", columns=head, rows=rows)


def conditions(summary: KvSummary) -> Conditions:
    what = summary.what
    # of an incomplete run it is the rate until its end, not the load's
    rate = summary.prompts_per_second if summary.complete else None
    storage, served = summary.environment.storage, summary.from_storage_percent
    in_memory = storage is not None and storage.file_system in IN_MEMORY
    return Conditions(
        title=f"KV cache of {summary.workload}",
        started_at=summary.started_at,
        hosts=summary.environment.hosts,
        storage=storage,
        facts={"folder": what.folder},
        work={
            "block_bytes": what.block_bytes,
            "option": summary.official.option if summary.official else 0,
            "block_tokens": what.block_tokens,
            **({} if rate is None else {"prompts_per_second": round(rate, 3)}),
            "trace": what.trace,
        },
        how={"odirect": what.odirect, "threads": what.threads, "ranks": summary.ranks},
        from_memory=(RUN,) if in_memory or (served is not None and served < NOT_READ_PERCENT) else (),
        warnings=summary.issues,
    )


PARTS = rows_parts(
    JOB,
    judged="load_p95_seconds",
    note="Latencies count from a prompt's arrival by the load's clock; a load that is not sustained has none.",
    conditions=conditions,
    limited_by=lambda summary: summary.limited_by and summary.limited_by.what,
    screen=_screen,
    sections=_sections,
    charts=_charts,
)
