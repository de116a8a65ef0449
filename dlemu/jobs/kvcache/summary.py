"""The result of a run of KV-cache offload: summary.json as frozen, typed values. docs/kvcache.md describes them."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.metrics.verdict import Outcome
from dlemu.runner.rows_job import RowsSummary


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of durations, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, kw_only=True)
class KvFacts:
    """What was served and stored."""

    token_bytes: int
    """Of a token's keys and values in all layers, all shards together."""
    block_tokens: int
    block_bytes: int
    """As stored: all shards together, padded, divided by `shrink`."""
    shard_bytes: int
    """Of one file, or slot."""
    shrink: int
    tp: int
    layout: str
    odirect: bool
    threads: int
    """Of each rank."""
    folder: str
    trace: str
    """Empty for a drawn load."""
    speed: float
    ttft_limit_seconds: float | None
    load_limit_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """What was waiting when the last prompt had come."""

    storage_seconds: float
    """To read and write what was asked for and not done, at the run's mean rate."""
    compute_seconds: float
    """To compute what had come and was not computed, by all copies of the model together."""
    storage_grows: bool
    """It would take more than 5 % of the load's time, and in its last third never less than half of that."""
    compute_grows: bool
    unfinished: int
    """Prompts that were given up."""


@dataclass(frozen=True, kw_only=True)
class SizeClass:
    """Loads of like size: a quarter of them each."""

    from_mb: float
    to_mb: float
    loads: int
    seconds: Spread


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """Where the tokens of prompts came from, in percent of all of them."""

    gpu: float
    dram: float
    pending: float
    """From memory, because they were still being written."""
    storage: float
    computed: float


@dataclass(frozen=True, kw_only=True)
class Fifo:
    """What one pipe that serves loads in order of arrival would make of them."""

    gb_per_second: float
    measured_here: bool
    """The rate is this run's own mean while it read, not one that was given."""
    load_seconds: Spread


@dataclass(frozen=True, kw_only=True)
class KvDevices:
    """What the devices behind `kv.folder` moved meanwhile, in percent of what was asked of them."""

    read_percent_of_app: float | None
    write_percent_of_app: float | None


@dataclass(frozen=True, kw_only=True)
class OfficialClass:
    """One class of service of the official load."""

    name: str
    requests: int
    served: int
    """Done when the tool counted."""
    p95_seconds: float | None
    """From when it was put on the queue, of those that were served."""


@dataclass(frozen=True, kw_only=True)
class Official:
    """What MLPerf Storage's tool would publish of such a run, and what is true. GiB are 2^30 bytes, as the tool's."""

    option: int
    model: str
    users: int
    """Of each rank."""
    clock_seconds: float
    """What the tool divides by: requests that are under way when it ends count by bytes, not by time."""
    read_gib_per_second: float
    """As published: ranks added up, a read counted when it begins."""
    write_gib_per_second: float
    true_window_seconds: float
    """From the first request to the last byte."""
    true_read_gib_per_second: float
    """Bytes that came, over that window."""
    true_write_gib_per_second: float
    overstated_percent: float | None
    """By how much the published rates, reads and writes together, exceed the true ones."""
    requests: int
    """Put on the queue while the clock ran."""
    served: int
    late: int
    """Of those served, after the clock had ended."""
    slowest_seconds: float | None
    storage_p95_seconds: float | None
    """Of a request's reads and writes together."""
    again_percent: float | None
    """Of the bytes read from storage, those that a request reads of the file that it has just written."""
    memory_percent: float | None
    """Of all bytes read, those from the host's memory: option 2 has some."""
    tokens_per_second: float
    """The answers' lengths, which are drawn, over the clock."""
    storage_tokens_per_second: float
    """The same over all workers' seconds in reads and writes."""
    classes: tuple[OfficialClass, ...]


@dataclass(frozen=True, kw_only=True)
class KvLimit:
    """What the time to the first token went to."""

    what: str
    """storage, accelerators, page cache or emulator; of the official load also arrivals."""
    evidence: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class KvSummary(RowsSummary):
    """Every published number. GB are 1e9 bytes; latencies count from when the load has a prompt arrive."""

    outcome: Outcome | None
    """None where no limit was asked for."""
    scale: str | None
    what: KvFacts
    prompts: int
    load_seconds: float
    """Length of the load."""
    prompts_per_second: float
    input_tokens_mean: float
    users: float
    """At a prompt every `kv.think_seconds` each."""
    accelerators: int
    """Emulated by all ranks."""
    sustained: bool | None
    """Neither storage nor accelerators fell further and further behind; None of an incomplete run."""
    backlog: Backlog | None
    ttft_seconds: Spread | None
    """To the first token; None, as the next two, where the load was not sustained."""
    load_times: Spread | None
    """Of prompts that read from storage, until the last block was there."""
    loads_by_size: tuple[SizeClass, ...]
    utilisation_percent: float | None
    """Computing / (computing + waiting for blocks), over all prompts."""
    gpu_seconds_computed: float
    """Accelerators times seconds."""
    gpu_seconds_won: float
    """What computing all that came from storage would have taken more, less the waiting (for blocks as stored)."""
    break_even_gb_per_second: float | None
    """An accelerator must get more than this of the model at full size, or computing anew is faster."""
    window_seconds: float
    """From the first prompt to the last byte."""
    read_bytes: int
    written_bytes: int
    read_gb_per_second: float
    """Over the window."""
    write_gb_per_second: float
    tiers: Tiers
    blocks_read: int
    blocks_written: int
    evicted: int
    dropped: int
    """Evicted before they had been written."""
    from_storage_percent: float | None
    """Of the bytes read, by the kernel's accounting; None where it has none."""
    devices: KvDevices | None
    fifo: Fifo | None
    official: Official | None = None
    """Of `kv.option`; None of other loads. What only emulated accelerators have is None or 0 beside it."""
    ceiling_times: float | None
    """So many times as many prompts the emulator could have moved without storage."""
    cpu_seconds_per_gb: float | None
    """Of bytes read and written."""
    late_ms_p99: float | None
    """By how much the emulator noticed arrivals late."""
    limited_by: KvLimit | None
    issues: tuple[str, ...]
