"""The result of a run of KV-cache offload, rows and summary. Explained in docs/kvcache.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_type_hints

from dlemu.extend import Metric, rows_job

RANK_ROW = -1  # value of `prompt` in the one row of each rank that describes its whole replay


@dataclass(eq=False)
class Row:
    """A prompt, or a rank, in kvcache.parquet: moments of CLOCK_MONOTONIC, ns, 0 if the run ended before."""

    rank: Annotated[int, "rank of the run"] = 0
    prompt: Annotated[int, "number of the prompt in the load, from 0; -1 is the row of the rank's whole replay"] = 0
    arrived_ns: Annotated[int, "when the prompt arrives according to the load; whole replay: when the load began"] = 0
    late_ns: Annotated[int, "how much later than that the emulator started to handle it"] = 0
    input_tokens: Annotated[int, "tokens of the prompt"] = 0
    output_tokens: Annotated[int, "tokens of the answer"] = 0
    cached_tokens: Annotated[int, "tokens of the prompt whose keys and values were found: they are not computed"] = 0
    memory_blocks: Annotated[int, "blocks found in memory (emulated)"] = 0
    pending_blocks: Annotated[int, "blocks found in memory because they were still being written to storage"] = 0
    storage_blocks: Annotated[int, "blocks read from storage"] = 0
    read_bytes: Annotated[int, "bytes read from storage"] = 0
    written_blocks: Annotated[int, "blocks to be written to storage"] = 0
    written_bytes: Annotated[int, "bytes to be written to storage"] = 0
    start_ns: Annotated[int, "when a copy of the model (official load: a worker) took the prompt"] = 0
    loaded_ns: Annotated[int, "when its last block was read; its arrival if it read none"] = 0
    compute_ns: Annotated[int, "duration of its prefill"] = 0
    without_ns: Annotated[int, "duration that its prefill would have had without blocks from storage"] = 0
    computed_ns: Annotated[int, "when it had its first token"] = 0
    written_ns: Annotated[int, "when its last block was written; 0 also if it wrote none"] = 0
    read_call_ns: Annotated[int, "time in open, read and close calls, summed over threads"] = 0
    write_call_ns: Annotated[int, "time in calls that write, summed over threads"] = 0
    cpu_ns: Annotated[int, "whole replay: CPU time of the rank"] = 0
    storage_bytes: Annotated[int, "whole replay: bytes fetched from storage, by the kernel's accounting"] = 0
    accelerators: Annotated[int, "whole replay: number of emulated accelerators"] = 0
    evicted: Annotated[int, "whole replay: blocks evicted from storage to make room for others"] = 0
    memory_bytes: Annotated[int, "official load: bytes read from the host's memory (emulated)"] = 0
    begun_bytes: Annotated[int, "official load: bytes of a read that was in progress when the run ended"] = 0
    ceiling_per_hour: Annotated[int, "whole replay: prompts per hour that it could move without storage"] = 0


COLUMNS = {name: hint.__metadata__[0] for name, hint in get_type_hints(Row, include_extras=True).items()}
"""Column -> its meaning."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Percentiles of durations, in seconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, kw_only=True)
class Official:
    """What MLPerf Storage's tool would publish of this run. GiB are 2^30 bytes, as in the tool."""

    read_gib_per_second: float
    """As published: summed over ranks, a read counted when it begins, divided by the clock (`kv.seconds`)."""
    write_gib_per_second: float
    served: int
    """Requests done when the tool counted."""
    late: int
    """Requests served after the clock had stopped; part of `served`."""
    storage_p95_seconds: float | None
    """Reads and writes of a request together, p95; the highest of all ranks."""
    tokens_per_second: float
    """Tokens of the answers served (random lengths), divided by the clock."""


Limit = Literal["storage", "accelerators", "page cache", "emulator", "arrivals"]
"""What can limit a run; `arrivals` the official load alone."""
_LoadP95 = Annotated[float | None, Metric("load p95", "s", "lower", head="load\np95 s", is_drawn=True, is_tile=True)]
_TtftP95 = Annotated[float | None, Metric("first token p95", "s", "lower", head="TTFT\np95 s", is_drawn=True)]
_OfficialRead = Annotated[float | None, Metric("MLPerf read", "GiB/s", "neither", head="MLPerf\nread")]


@dataclass(frozen=True, kw_only=True)
class KvSummary(rows_job.RowsSummary):
    """Every published number. GB are 1e9 bytes; latencies count from a prompt's arrival."""

    arrivals: str
    """`random`, a trace or an option; with its rate, or its users."""
    prompts: int
    prompts_per_second: Annotated[float, Metric("prompts", "/s", "neither", head="prompts\n/s")]
    """Prompts that arrived at all ranks; in a closed loop, were answered."""
    tokens_per_second: Annotated[float, Metric("tokens", "/s", "higher", head="tokens\n/s")]
    """Tokens of the prompts that were answered, cached ones included / duration of the load."""
    sustained: bool | None
    """Neither storage nor accelerators fell further and further behind; None if incomplete."""
    backlog_seconds: Annotated[float | None, Metric("waiting at the end", "s", "lower", head="backlog\ns")]
    """Time for what was still queued when the last prompt arrived, at the run's mean rate; in a closed loop, writes."""
    ttft_seconds: Spread | None
    """Time to the first token; None, as the next two fields, if `sustained` is false or the run incomplete."""
    load_times: Spread | None
    """Time until a prompt's last block was read, for prompts that read from storage."""
    utilisation_percent: Annotated[float | None, Metric("utilisation", "%", "higher", head="util.\n%", is_drawn=True)]
    """Accelerators' computing time / (computing time + waiting for blocks)."""
    gpu_seconds_won: Annotated[float, Metric("accelerator time saved", "s", "higher")]
    """Accelerator seconds that blocks from storage saved: prefill time avoided, minus waiting for blocks as stored."""
    break_even_gb_per_second: Annotated[float | None, Metric("break-even", "GB/s", "neither")]
    """Rate per accelerator (full-size model) below which computing is faster than loading."""
    read_gb_per_second: Annotated[float, Metric("read", "GB/s", "higher", head="read\nGB/s")]
    """Bytes read from storage / time from the first prompt to the last byte."""
    write_gb_per_second: Annotated[float, Metric("written", "GB/s", "higher", head="write\nGB/s")]
    """Bytes written to storage / the same time."""
    tokens_from_storage_percent: float
    """Share of the prompts' tokens whose keys and values were read from storage; 0 for the official load."""
    from_storage_percent: float | None
    """Share of the bytes read that came from storage, by the kernel's accounting; None where it has none."""
    official: Official | None = None
    """Results of the official load."""
    ceiling_times: Annotated[float | None, Metric("ceiling", "x", "neither", is_compared=False)]
    """Load that the emulator could have moved without storage, as a multiple of this load."""
    cpu_seconds_per_gb: Annotated[float | None, Metric("CPU", "s/GB", "lower")]
    """CPU time of all ranks per 1e9 bytes read and written."""
    limited_by: Limit | None

    @property
    def load_p95_seconds(self) -> _LoadP95:
        """Time from a prompt's arrival until its last block was read, 95th percentile."""
        return self.load_times.p95 if self.load_times else None

    @property
    def ttft_p95_seconds(self) -> _TtftP95:
        """Time from a prompt's arrival to its first token, queueing and computing included, 95th percentile."""
        return self.ttft_seconds.p95 if self.ttft_seconds else None

    @property
    def official_read_gib_per_second(self) -> _OfficialRead:
        """What MLPerf Storage's tool would publish for that load: its clock stops early."""
        return self.official.read_gib_per_second if self.official else None
