"""The result of a run of KV-cache offload: summary.json as frozen, typed values. Explained in docs/kvcache.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from dlemu.extend import Metric, rows_job


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and percentiles of durations, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, kw_only=True)
class KvFacts:
    """The model that was served, and how its blocks were stored."""

    token_bytes: int
    """Bytes of one token's keys and values in all layers, summed over shards."""
    block_tokens: int
    block_bytes: int
    """Bytes of a block as stored: summed over shards, divided by `kv.shrink`, padded."""
    odirect: bool
    threads: int
    """Threads per rank."""
    folder: str
    trace: str
    """Empty for a random load."""


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The work that was still queued when the last prompt arrived."""

    storage_seconds: float
    """Time for the queued reads and writes, at the run's mean rate."""
    compute_seconds: float
    """Time to compute the loaded prompts that were not computed yet, by all copies of the model together."""
    storage_grows: bool
    """`storage_seconds` exceeds 5 % of the load's duration, and never fell below half of that in its last third."""
    compute_grows: bool
    """The same for `compute_seconds`."""
    unfinished: int
    """Prompts that were given up at the timeout after the last arrival."""


@dataclass(frozen=True, kw_only=True)
class SizeClass:
    """A quarter of the loads (reads of one prompt's blocks), those of similar size."""

    from_mb: float
    to_mb: float
    loads: int
    seconds: Spread


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """Where the tokens of prompts came from, in percent of all prompt tokens."""

    gpu: float
    dram: float
    pending: float
    """Taken from memory, because their blocks were still being written."""
    storage: float
    computed: float


@dataclass(frozen=True, kw_only=True)
class Fifo:
    """How long loads would take in the FIFO model: one pipe of constant rate that serves them in order of arrival."""

    gb_per_second: float
    measured_here: bool
    """The rate is the mean of this run while it read, not `kv.pipe_gb_per_second`."""
    load_seconds: Spread


@dataclass(frozen=True, kw_only=True)
class KvDevices:
    """The bytes that the devices behind `kv.folder` moved during the run, in percent of the bytes requested."""

    read_percent_of_app: float | None
    write_percent_of_app: float | None


@dataclass(frozen=True, kw_only=True)
class OfficialClass:
    """One class of service of the official load."""

    name: str
    requests: int
    served: int
    """Requests done when the tool counted."""
    p95_seconds: float | None
    """Time since a request was queued, p95 of those served."""


@dataclass(frozen=True, kw_only=True)
class Official:
    """What MLPerf Storage's tool would publish of this run, and the true rates. GiB are 2^30 bytes, as in the tool."""

    option: int
    model: str
    users: int
    """Users per rank."""
    clock_seconds: float
    """The time by which the tool divides: bytes of requests in progress at its end count, their time does not."""
    read_gib_per_second: float
    """As published: summed over ranks, a read counted when it begins."""
    write_gib_per_second: float
    true_window_seconds: float
    """From the first request to the last byte."""
    true_read_gib_per_second: float
    """Bytes of completed reads, divided by that window."""
    true_write_gib_per_second: float
    overstated_percent: float | None
    """Excess of the published rates over the true ones, reads and writes together."""
    requests: int
    """Requests queued while the clock ran."""
    served: int
    late: int
    """Requests served after the clock had stopped; part of `served`."""
    slowest_seconds: float | None
    storage_p95_seconds: float | None
    """Reads and writes of a request together, p95; the highest of all ranks."""
    again_percent: float | None
    """Bytes that requests read back from the files they had just written, in percent of the bytes read from storage."""
    memory_percent: float | None
    """Bytes from the host's memory, which only option 2 has, in percent of all bytes read."""
    tokens_per_second: float
    """Tokens of the answers served (random lengths), divided by the clock."""
    storage_tokens_per_second: float
    """The same tokens, divided by the time that all workers spent in reads and writes."""
    classes: tuple[OfficialClass, ...]


Limit = Literal["storage", "accelerators", "page cache", "emulator", "arrivals"]
"""What can limit a run; `arrivals` the official load alone."""


@dataclass(frozen=True, kw_only=True)
class KvSummary(rows_job.RowsSummary):
    """Every published number. GB are 1e9 bytes; latencies count from a prompt's arrival according to the load."""

    scale: str | None
    what: KvFacts
    prompts: int
    load_seconds: float
    """Duration of the load."""
    prompts_per_second: Annotated[
        float | None,
        Metric(
            "prompts",
            "/s",
            "neither",
            "prompts that arrived by the load's clock, at all ranks together",
            head="prompts\n/s",
        ),
    ]
    """None if all prompts of a trace, or until a failure, arrived at one moment: then there is no rate to sustain."""
    input_tokens_mean: float
    users: float
    """Users that the arrival rate stands for, at one prompt per `kv.think_seconds` each."""
    accelerators: int
    """Emulated accelerators of all ranks."""
    sustained: bool | None
    """Neither storage nor accelerators fell further and further behind; None if incomplete, or without a rate."""
    backlog: Backlog | None
    ttft_seconds: Spread | None
    """Time to the first token; None, as the next two fields, if `sustained` is false or the run incomplete."""
    load_times: Spread | None
    """Time until a prompt's last block was read, for prompts that read from storage."""
    loads_by_size: tuple[SizeClass, ...]
    utilisation_percent: Annotated[float | None, Metric("utilisation", "%", "higher", head="util.\n%", is_drawn=True)]
    """Accelerators' computing time / (computing time + waiting for blocks)."""
    gpu_seconds_computed: float
    """Prefill time, in accelerator seconds."""
    gpu_seconds_won: Annotated[float, Metric("accelerator time saved", "s", "higher")]
    """Accelerator seconds that blocks from storage saved: prefill time avoided, minus waiting for blocks as stored."""
    break_even_gb_per_second: Annotated[float | None, Metric("break-even", "GB/s", "neither")]
    """Rate per accelerator (full-size model) below which computing is faster than loading."""
    window_seconds: float
    """From the first prompt to the last byte, or to the end of the load, if that is later."""
    read_bytes: int
    written_bytes: int
    read_gb_per_second: Annotated[float, Metric("read", "GB/s", "higher", head="read\nGB/s")]
    """Bytes read from storage / time from the first prompt to the last byte."""
    write_gb_per_second: Annotated[float, Metric("written", "GB/s", "higher", head="write\nGB/s")]
    """Bytes written to storage / the same time."""
    tiers: Tiers
    blocks_read: int
    blocks_written: int
    evicted: int
    dropped: int
    """Blocks evicted before they were written."""
    from_storage_percent: float | None
    """Share of the bytes read that came from storage, by the kernel's accounting; None where it has none."""
    devices: KvDevices | None
    fifo: Fifo | None
    official: Official | None = None
    """Results of the official load (`kv.option`), for which fields about emulated accelerators are None or 0."""
    ceiling_times: Annotated[float | None, Metric("ceiling", "x", "neither", is_compared=False)]
    """Load that the emulator could have moved without storage, as a multiple of this load."""
    cpu_seconds_per_gb: Annotated[float | None, Metric("CPU", "s/GB", "lower")]
    """CPU time of all ranks per 1e9 bytes read and written."""
    late_ms_p99: float | None
    """Delay with which the emulator handled arrivals, p99."""
    limited_by: Limit | None
    issues: tuple[str, ...]

    @property
    def load_p95_seconds(
        self,
    ) -> Annotated[float | None, Metric("load p95", "s", "lower", head="load\np95 s", is_drawn=True, is_tile=True)]:
        """Time from a prompt's arrival until its last block was read, 95th percentile."""
        return self.load_times.p95 if self.load_times else None

    @property
    def ttft_p95_seconds(
        self,
    ) -> Annotated[float | None, Metric("first token p95", "s", "lower", head="TTFT\np95 s", is_drawn=True)]:
        """Time from a prompt's arrival to its first token, queueing and computing included, 95th percentile."""
        return self.ttft_seconds.p95 if self.ttft_seconds else None

    @property
    def backlog_seconds(self) -> Annotated[float | None, Metric("waiting at the end", "s", "lower", head="backlog\ns")]:
        """Time for the reads and writes still queued when the last prompt arrived, at the run's mean rate."""
        return self.backlog.storage_seconds if self.backlog else None

    @property
    def true_read_gib_per_second(
        self,
    ) -> Annotated[float | None, Metric("true read", "GiB/s", "higher", head="true\nread")]:
        """Bytes of completed reads of MLPerf Storage's load / time from the first request to the last byte."""
        return self.official.true_read_gib_per_second if self.official else None

    @property
    def official_read_gib_per_second(
        self,
    ) -> Annotated[float | None, Metric("MLPerf read", "GiB/s", "neither", head="MLPerf\nread")]:
        """What MLPerf Storage's tool would publish for that load: its clock stops early."""
        return self.official.read_gib_per_second if self.official else None
