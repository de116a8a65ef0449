"""The result of a run of KV-cache offload as text: tables and sentences for the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from dlemu.contrib.kvcache.job import read
from dlemu.contrib.kvcache.summary import KvSummary, Official, Spread
from dlemu.extend import Outcome, RowsRun
from dlemu.report.environment import environment_of, facts_table
from dlemu.report.page import STATES, About, Opened, Page, Text, Words, tiles
from dlemu.report.table import Cell, Line, Table, Tone, columns, print_lines, print_table
from dlemu.report.units import flat, number, size
from dlemu.results.tables import read_config
from dlemu.results.wording import TRADEMARK, count

Row = tuple[str, str, str]

_OFFICIAL_NOTE = "This load is a rehearsal: kv-cache.py did not run. CLOSED results come from mlpstorage, unchanged."
_OFFICIAL_TILES = (
    ("true read", "official.true_read_gib_per_second", "GiB/s", "from the first request to the last byte"),
    ("MLPerf read", "official.read_gib_per_second", "GiB/s", "what the tool would publish"),
    ("true write", "official.true_write_gib_per_second", "GiB/s", "from the first request to the last byte"),
    ("MLPerf write", "official.write_gib_per_second", "GiB/s", "what the tool would publish"),
    ("overstated by", "official.overstated_percent", "%", "published relative to true"),
)
_TILES = (
    ("prompts", "prompts_per_second", "/s", "as the load defines"),
    ("first token", "ttft_seconds.p95", "s", "95 % of the prompts had it within this time"),
    ("load", "load_times.p95", "s", "95 % of the prompts that read from storage had their blocks within this time"),
    ("utilisation", "utilisation_percent", "%", "computing / (computing + waiting for blocks)"),
    ("read", "read_gb_per_second", "GB/s", "from the first prompt to the last byte"),
    ("accelerators", "accelerators", "", "emulated"),
)


def print_summary(summary: KvSummary, folder: str, console: Console) -> None:
    """Print the table, the notes on it, and the verdict."""
    print_table(_table(summary), console)
    print_lines([*_notes(summary), Line(summary.verdict, _tone(summary))], console, wrap=True)
    print_lines([f"results: {folder}"], console)


def open_page(folder: str) -> Opened:
    """Return the run in a folder with its page; raises UserError."""
    run = read(folder)
    summary: KvSummary = run.summary
    words = [Words(f"Limited by: {summary.limited_by.what}", summary.limited_by.evidence)] if summary.limited_by else []
    if summary.issues:
        words.append(Words("Notes on these numbers", summary.issues))
    if summary.official is not None:
        words.append(Words("MLPerf Storage", (_OFFICIAL_NOTE, TRADEMARK)))
    page = Page(
        title=_title(summary),
        lead=f"{summary.started_at}. {count(summary.prompts, 'prompt')}, blocks in {summary.what.folder}.",
        state=STATES[_tone(summary)],
        verdict=("", summary.verdict),
        tiles=tiles(summary, _OFFICIAL_TILES if summary.official else _TILES),
        words=words,
        tables=[
            _table(summary),
            *_classes(summary),
            *_official_classes(summary),
            facts_table("What was served and stored", flat(summary.what), folded=True),
            *environment_of(summary.environment, "the blocks"),
        ],
        texts=[Text("Full configuration (config.yaml)", read_config(folder))],
        source=folder,
        warning="" if summary.complete else summary.verdict,
    )
    return Opened(run, page, "dlemu.contrib.kvcache.figures")


def about(run: RowsRun) -> About:
    """Return when and where a run was measured, with tables about its environment."""
    summary: KvSummary = run.summary
    tables = [facts_table("What was served and stored", flat(summary.what)), *environment_of(summary.environment)]
    return About(summary.started_at, summary.hosts, f"Blocks in {summary.what.folder}", tables)


def _tone(summary: KvSummary) -> Tone:
    if not summary.complete or summary.outcome == "fail":
        return "bad"
    tones: dict[Outcome, Tone] = {"pass": "good", "no verdict": "open"}
    return "strong" if summary.outcome is None else tones.get(summary.outcome, "open")


def _title(summary: KvSummary) -> str:
    if summary.official is not None:
        return f"MLPerf Storage kv_cache, option {summary.official.option}: {count(summary.ranks, 'rank')}"
    return f"{summary.workload}: KV cache on storage, {count(summary.ranks, 'rank')}"


def _table(summary: KvSummary) -> Table:
    rows = [*_load_rows(summary), *_latency_rows(summary), *_storage_rows(summary), *_own_rows(summary)]
    return Table(title=_title(summary), columns=columns("metric", "value", "what it is", whole=(0,)), rows=rows)


def _load_rows(summary: KvSummary) -> Iterator[Row]:
    what, official = summary.what, summary.official
    if official is not None:
        shrunk = f", 1/{what.shrink} of it as stored" if what.shrink > 1 else ""
        yield "bytes per token", f"{what.token_bytes:,}", f"{official.model}{shrunk}; one file per turn"
        length = f"per rank; all send {number(summary.prompts_per_second)} requests/s together, served or not"
        yield "users", f"{official.users:,}", length
        return
    shown = f"block of {what.block_tokens} tokens: {size(what.block_bytes)}"
    shrunk = f", 1/{what.shrink} of the model's" if what.shrink > 1 else ""
    parts = f" in {what.tp} shards" if what.tp > 1 else ""
    yield "bytes per token", f"{what.token_bytes:,}", f"{shown}{shrunk}{parts}"
    source = what.trace or "random"
    rate = summary.prompts_per_second
    took = "at one moment" if rate is None else f"in {number(summary.load_seconds)} s"
    length = f"{summary.prompts:,} {took}, {source}, speed {what.speed:g}"
    yield "prompts", "no rate" if rate is None else f"{number(rate)} /s", length
    yield "  tokens", f"{summary.input_tokens_mean:,.0f}", "per prompt, mean"
    if rate is not None:
        yield "users", f"{summary.users:,.0f}", "with one prompt every kv.think_seconds each"
    yield "accelerators", f"{summary.accelerators:,}", "emulated, all ranks"


def _latency_rows(summary: KvSummary) -> Iterator[Row]:
    if summary.ttft_seconds is not None:
        yield "first token p95", f"{number(summary.ttft_seconds.p95)} s", _spread(summary.ttft_seconds)
    if summary.load_times is not None:
        yield "load p95", f"{number(summary.load_times.p95)} s", _spread(summary.load_times)
    if summary.official is not None:
        yield from _official_rows(summary.official)
    if summary.fifo is not None:
        rate = f"{number(summary.fifo.gb_per_second)} GB/s{', its own mean while reading' * summary.fifo.measured_here}"
        yield "  FIFO model", f"{number(summary.fifo.load_seconds.p95)} s", f"p95 of loads through one pipe of {rate}"
    if summary.utilisation_percent is not None:
        yield "utilisation", f"{summary.utilisation_percent:.1f} %", "computing / (computing + waiting for blocks)"
    if summary.backlog is not None:
        backlog = summary.backlog
        left = f"; {count(backlog.unfinished, 'prompt')} given up" if backlog.unfinished else ""
        words = f"queued reads and writes at the last arrival; computing {number(backlog.compute_seconds)} s{left}"
        yield "backlog", f"{number(backlog.storage_seconds)} s", words


def _official_rows(official: Official) -> Iterator[Row]:
    rates = (
        ("read", official.true_read_gib_per_second, official.read_gib_per_second),
        ("write", official.true_write_gib_per_second, official.write_gib_per_second),
    )
    for way, true, published in rates:
        over = f"over {number(official.true_window_seconds)} s, from the first request to the last byte"
        yield f"true {way}", f"{number(true)} GiB/s", over
        over = f"what the tool would publish: all bytes over {official.clock_seconds:g} s, also those that came later"
        yield f"  MLPerf {way}", f"{number(published)} GiB/s", over
    if official.overstated_percent is not None:
        words = "published rates compared with true ones, reads and writes together"
        yield "  overstated by", f"{official.overstated_percent:.1f} %", words
    late = f"{official.late:,} of them after the clock had stopped"
    yield "requests served", f"{official.served:,}", f"of {official.requests:,} requested; {late}"
    if official.storage_p95_seconds is not None and official.slowest_seconds is not None:
        words = f"reads and writes of a request; the slowest took {number(official.slowest_seconds)} s from its arrival"
        yield "request p95", f"{number(official.storage_p95_seconds)} s", words
    tokens = f"{number(official.storage_tokens_per_second)} by the workers' storage time; answers have random lengths"
    yield "tokens/s", number(official.tokens_per_second), tokens


def _official_classes(summary: KvSummary) -> Iterator[Table]:
    if summary.official is None:
        return
    rows = [
        (one.name, f"{one.requests:,}", f"{one.served:,}", "-" if one.p95_seconds is None else number(one.p95_seconds))
        for one in summary.official.classes
    ]
    head = columns("class", "requested", "served", "p95 s", right=range(1, 4))
    yield Table(title="Requests by class of service", columns=head, rows=rows)


def _storage_rows(summary: KvSummary) -> Iterator[Row]:
    over = f"over {number(summary.window_seconds)} s, to the last byte"
    blocks = f"{size(summary.read_bytes)} in {count(summary.blocks_read, 'block')}, {over}"
    yield "read", f"{number(summary.read_gb_per_second)} GB/s", blocks
    gone = f"; {summary.evicted:,} evicted" if summary.evicted else ""
    gone += f", {summary.dropped:,} of them never written" if summary.dropped else ""
    blocks = f"{size(summary.written_bytes)} in {count(summary.blocks_written, 'block')}{gone}"
    yield "written", f"{number(summary.write_gb_per_second)} GB/s", blocks
    if summary.official is None:
        tiers = summary.tiers
        memory = [("GPU", tiers.gpu), ("DRAM", tiers.dram), ("still being written", tiers.pending)]
        others = "".join(f"{name} {value:.1f} %, " for name, value in memory if value)
        yield "tokens from storage", f"{tiers.storage:.1f} %", f"{others}computed {tiers.computed:.1f} %"
    if summary.devices is not None:
        shares = summary.devices.read_percent_of_app, summary.devices.write_percent_of_app
        read, write = ("-" if share is None else f"{share:.0f} %" for share in shares)
        yield "device bytes", read, f"of the bytes requested were read from the devices; {write} written"
    if summary.break_even_gb_per_second is not None:
        words = "below this rate per accelerator, recomputing is faster (full-size model)"
        yield "break-even", f"{number(summary.break_even_gb_per_second)} GB/s", words
    if summary.official is not None:
        return
    won = f"accelerator seconds compared with recomputing everything; computed {number(summary.gpu_seconds_computed)}"
    if summary.what.shrink > 1:
        won += f"; waiting for full-size blocks would take longer than for those of 1/{summary.what.shrink}"
    yield "time saved", f"{number(summary.gpu_seconds_won)} s", won


def _own_rows(summary: KvSummary) -> Iterator[Row]:
    if summary.ceiling_times is not None:
        yield "ceiling", f"{summary.ceiling_times:,.0f} x", "this load could be moved by the emulator without storage"
    if summary.cpu_seconds_per_gb is not None:
        late = "" if summary.late_ms_p99 is None else f"; arrivals handled {number(summary.late_ms_p99)} ms late (p99)"
        yield "CPU", f"{number(summary.cpu_seconds_per_gb)} s/GB", f"all ranks, per GB read and written{late}"


def _spread(seconds: Spread) -> str:
    return f"p50 {number(seconds.p50)}, p99 {number(seconds.p99)}, max {number(seconds.max)} s"


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


def _notes(summary: KvSummary) -> Iterator[Cell]:
    yield from (Line(f"- {issue}", "caution") for issue in summary.issues)
    if summary.limited_by is not None:
        yield Line(f"limited by: {summary.limited_by.what}", "strong")
        yield from (f"  {sentence}" for sentence in summary.limited_by.evidence)
