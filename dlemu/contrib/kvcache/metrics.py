"""The metrics of KV-cache offload, and the parts of a run that sweeps and comparisons keep."""

from __future__ import annotations

from dlemu.contrib.kvcache.summary import KvSummary
from dlemu.extend import Catalogue, Metric, RowsRun
from dlemu.metrics.cache import IN_MEMORY, NOT_READ_PERCENT
from dlemu.metrics.catalogue import RUN
from dlemu.report.units import at
from dlemu.results.compared import Conditions
from dlemu.results.figures import JobFigures, Value

CATALOGUE = Catalogue(
    metrics=(
        Metric(
            name="prompts_per_second",
            title="prompts",
            unit="/s",
            better="neither",
            meaning="prompts that arrived by the load's clock, at all ranks together",
            head="prompts\n/s",
        ),
        Metric(
            name="load_p95_seconds",
            title="load p95",
            unit="s",
            better="lower",
            meaning="time from a prompt's arrival until its last block was read, 95th percentile",
            head="load\np95 s",
            is_drawn=True,
            is_tile=True,
        ),
        Metric(
            name="load_p50_seconds",
            title="load p50",
            unit="s",
            better="lower",
            meaning="time from a prompt's arrival until its last block was read, median",
            head="p50\ns",
        ),
        Metric(
            name="ttft_p95_seconds",
            title="first token p95",
            unit="s",
            better="lower",
            meaning="time from a prompt's arrival to its first token, queueing and computing included, 95th percentile",
            head="TTFT\np95 s",
            is_drawn=True,
        ),
        Metric(
            name="ttft_p50_seconds",
            title="first token p50",
            unit="s",
            better="lower",
            meaning="time from a prompt's arrival to its first token, median",
        ),
        Metric(
            name="utilisation_percent",
            title="utilisation",
            unit="%",
            better="higher",
            meaning="accelerators' computing time / (computing time + waiting for blocks)",
            head="util.\n%",
            is_drawn=True,
        ),
        Metric(
            name="read_gb_per_second",
            title="read",
            unit="GB/s",
            better="higher",
            meaning="bytes read from storage / time from the first prompt to the last byte",
            head="read\nGB/s",
        ),
        Metric(
            name="write_gb_per_second",
            title="written",
            unit="GB/s",
            better="higher",
            meaning="bytes written to storage / time from the first prompt to the last byte",
            head="write\nGB/s",
        ),
        Metric(
            name="official_read_gib_per_second",
            title="MLPerf read",
            unit="GiB/s",
            better="neither",
            meaning="what MLPerf Storage's tool would publish for its load (kv.option): its clock stops early",
            head="MLPerf\nread",
        ),
        Metric(
            name="true_read_gib_per_second",
            title="true read",
            unit="GiB/s",
            better="higher",
            meaning="bytes of completed reads of that load / time from the first request to the last byte",
            head="true\nread",
        ),
        Metric(
            name="official_write_gib_per_second",
            title="MLPerf write",
            unit="GiB/s",
            better="neither",
            meaning="the same for writes",
        ),
        Metric(
            name="true_write_gib_per_second",
            title="true write",
            unit="GiB/s",
            better="higher",
            meaning="bytes of completed writes / time from the first request to the last byte",
        ),
        Metric(
            name="overstated_percent",
            title="overstated",
            unit="%",
            better="neither",
            meaning="excess of the rates that MLPerf Storage's tool would publish over the true ones",
        ),
        Metric(
            name="storage_percent",
            title="tokens from storage",
            unit="%",
            better="neither",
            meaning="share of all prompt tokens whose keys and values came from storage",
        ),
        Metric(
            name="gpu_seconds_won",
            title="accelerator time saved",
            unit="s",
            better="higher",
            meaning="computing time that blocks from storage saved, minus the waiting for them",
        ),
        Metric(
            name="backlog_seconds",
            title="waiting at the end",
            unit="s",
            better="lower",
            meaning="time for the reads and writes still queued when the last prompt arrived, at the run's mean rate",
            head="backlog\ns",
        ),
        Metric(
            name="fifo_p95_seconds",
            title="load p95, FIFO model",
            unit="s",
            better="neither",
            meaning="p95 of loads through one pipe of constant rate, the run's own mean or kv.pipe_gb_per_second",
        ),
        Metric(
            name="break_even_gb_per_second",
            title="break-even",
            unit="GB/s",
            better="neither",
            meaning="below this rate per accelerator, recomputing is faster (full-size model)",
        ),
        Metric(
            name="device_read_percent",
            title="device bytes read",
            unit="%",
            better="neither",
            meaning="bytes that the devices read, by the kernel's counters, of those requested",
        ),
        Metric(
            name="device_write_percent",
            title="device bytes written",
            unit="%",
            better="neither",
            meaning="bytes that the devices wrote, by the kernel's counters, of those requested",
        ),
        Metric(
            name="ceiling_times",
            title="ceiling",
            unit="x",
            better="neither",
            meaning="this load could be moved by the emulator, if storage took no time",
            is_compared=False,
        ),
        Metric(
            name="cpu_seconds_per_gb",
            title="CPU",
            unit="s/GB",
            better="lower",
            meaning="CPU time of the ranks per 1e9 bytes read and written",
        ),
    ),
    judged="load_p95_seconds",
    note="Latencies count from a prompt's arrival by the load's clock; a load that is not sustained has none.",
)

_FIELDS = {
    "load_p95_seconds": "load_times.p95",
    "load_p50_seconds": "load_times.p50",
    "ttft_p95_seconds": "ttft_seconds.p95",
    "ttft_p50_seconds": "ttft_seconds.p50",
    "official_read_gib_per_second": "official.read_gib_per_second",
    "true_read_gib_per_second": "official.true_read_gib_per_second",
    "official_write_gib_per_second": "official.write_gib_per_second",
    "true_write_gib_per_second": "official.true_write_gib_per_second",
    "overstated_percent": "official.overstated_percent",
    "storage_percent": "tiers.storage",
    "backlog_seconds": "backlog.storage_seconds",
    "fifo_p95_seconds": "fifo.load_seconds.p95",
    "device_read_percent": "devices.read_percent_of_app",
    "device_write_percent": "devices.write_percent_of_app",
}
"""Metric -> its field in the summary, if the name differs."""
_ACCELERATOR_METRICS = ("storage_percent", "gpu_seconds_won")
"""Metrics that the official load lacks, because it emulates no accelerators."""


def values(summary: KvSummary) -> dict[str, float]:
    absent = _ACCELERATOR_METRICS if summary.official else ()
    known = {
        metric.name: at(summary, _FIELDS.get(metric.name, metric.name))
        for metric in CATALOGUE
        if metric.name not in absent
    }
    return {name: value for name, value in known.items() if value is not None}


def figures(run: RowsRun) -> JobFigures:
    """Return the figures of a run that sweeps, comparisons and pages of several runs keep."""
    summary: KvSummary = run.summary
    return JobFigures(
        kind=summary.kind,
        workload=summary.workload,
        ranks=summary.ranks,
        passed={"pass": True, "fail": False}.get(summary.outcome or ""),
        verdict=summary.verdict,
        limited_by={RUN: summary.limited_by.what if summary.limited_by else None},
        metrics={name: Value(value) for name, value in values(summary).items()},
    )


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
        how={"layout": what.layout, "odirect": what.odirect, "threads": what.threads, "ranks": summary.ranks},
        from_memory=(RUN,) if in_memory or (served is not None and served < NOT_READ_PERCENT) else (),
        warnings=summary.issues,
    )
