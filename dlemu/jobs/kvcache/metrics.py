"""The metrics of KV-cache offload, and what sweeps and comparisons keep of a run."""

from __future__ import annotations

from dlemu.jobs.kvcache.summary import KvSummary
from dlemu.metrics.catalogue import RUN, Catalogue, Metric
from dlemu.report.units import at
from dlemu.results.compared import Conditions
from dlemu.results.figures import JobFigures, Value
from dlemu.runner.rows_job import RowsRun

CATALOGUE = Catalogue(
    metrics=(
        Metric(
            name="prompts_per_second",
            title="prompts",
            unit="/s",
            better="neither",
            meaning="that arrived, by the load's own clock, at all ranks together",
            head="prompts\n/s",
        ),
        Metric(
            name="load_p95_seconds",
            title="load p95",
            unit="s",
            better="lower",
            meaning="from a prompt's arrival until its last block was read; 95 % of the loads took no longer",
            head="load\np95 s",
            is_drawn=True,
            is_tile=True,
        ),
        Metric(
            name="load_p50_seconds",
            title="load p50",
            unit="s",
            better="lower",
            meaning="the same, of half of the loads",
            head="p50\ns",
        ),
        Metric(
            name="ttft_p95_seconds",
            title="first token p95",
            unit="s",
            better="lower",
            meaning="from a prompt's arrival to its first token, waiting for an accelerator and computing included",
            head="TTFT\np95 s",
            is_drawn=True,
        ),
        Metric(
            name="ttft_p50_seconds",
            title="first token p50",
            unit="s",
            better="lower",
            meaning="the same, of half of the prompts",
        ),
        Metric(
            name="utilisation_percent",
            title="utilisation",
            unit="%",
            better="higher",
            meaning="accelerators' computing time, as a share of it and their waiting for blocks",
            head="util.\n%",
            is_drawn=True,
        ),
        Metric(
            name="read_gb_per_second",
            title="read",
            unit="GB/s",
            better="higher",
            meaning="from storage, from the first prompt to the last byte",
            head="read\nGB/s",
        ),
        Metric(
            name="write_gb_per_second",
            title="written",
            unit="GB/s",
            better="higher",
            meaning="to storage, from the first prompt to the last byte",
            head="write\nGB/s",
        ),
        Metric(
            name="official_read_gib_per_second",
            title="MLPerf read",
            unit="GiB/s",
            better="neither",
            meaning="what MLPerf Storage's tool would publish of its load (kv.option): its clock stops early",
            head="MLPerf\nread",
        ),
        Metric(
            name="true_read_gib_per_second",
            title="true read",
            unit="GiB/s",
            better="higher",
            meaning="the same bytes, from the first request to the last byte",
            head="true\nread",
        ),
        Metric(
            name="overstated_percent",
            title="overstated",
            unit="%",
            better="neither",
            meaning="published rates of MLPerf Storage's load relative to the true ones, reads and writes together",
        ),
        Metric(
            name="storage_percent",
            title="tokens from storage",
            unit="%",
            better="neither",
            meaning="of all prompt tokens",
        ),
        Metric(
            name="gpu_seconds_won",
            title="accelerator time saved",
            unit="s",
            better="higher",
            meaning="that computing everything again would have taken more, less the waiting for blocks",
        ),
        Metric(
            name="backlog_seconds",
            title="waiting at the end",
            unit="s",
            better="lower",
            meaning="reads and writes still queued when the last prompt arrived, at the run's mean rate",
            head="backlog\ns",
        ),
        Metric(
            name="cpu_seconds_per_gb",
            title="CPU",
            unit="s/GB",
            better="lower",
            meaning="of the ranks, per 1e9 bytes read and written",
        ),
    ),
    judged="load_p95_seconds",
    note="Latencies count from a prompt's arrival by the load's own clock; a load that is not sustained has none.",
)

_PLACES = {
    "load_p95_seconds": "load_times.p95",
    "load_p50_seconds": "load_times.p50",
    "ttft_p95_seconds": "ttft_seconds.p95",
    "ttft_p50_seconds": "ttft_seconds.p50",
    "official_read_gib_per_second": "official.read_gib_per_second",
    "true_read_gib_per_second": "official.true_read_gib_per_second",
    "overstated_percent": "official.overstated_percent",
    "storage_percent": "tiers.storage",
    "backlog_seconds": "backlog.storage_seconds",
}
"""Metric -> its place in the summary, where that is not its name."""


_OF_ACCELERATORS = ("storage_percent", "gpu_seconds_won")
"""What the official load has not, which emulates none."""


def figures(run: RowsRun) -> JobFigures:
    """Return what sweeps, comparisons and pages of several keep of a run."""
    summary: KvSummary = run.summary
    none = _OF_ACCELERATORS if summary.official else ()
    known = {
        metric.name: at(summary, _PLACES.get(metric.name, metric.name))
        for metric in CATALOGUE
        if metric.name not in none
    }
    return JobFigures(
        kind=summary.kind,
        workload=summary.workload,
        ranks=summary.ranks,
        passed={"pass": True, "fail": False}.get(summary.outcome or ""),
        verdict=summary.verdict,
        limited_by={RUN: summary.limited_by.what if summary.limited_by else None},
        metrics={name: Value(value) for name, value in known.items() if value is not None},
    )


def conditions(summary: KvSummary) -> Conditions:
    """Return what a run was measured under."""
    what = summary.what
    return Conditions(
        title=f"KV cache of {summary.workload}",
        started_at=summary.started_at,
        hosts=summary.environment.hosts,
        storage=summary.environment.storage,
        facts={"folder": what.folder},
        work={
            "block_bytes": what.block_bytes,
            "option": summary.official.option if summary.official else 0,
            "block_tokens": what.block_tokens,
            "prompts_per_second": round(summary.prompts_per_second, 3),
            "trace": what.trace,
        },
        how={"layout": what.layout, "odirect": what.odirect, "threads": what.threads, "ranks": summary.ranks},
        warnings=(*(() if summary.complete else (summary.verdict,)), *summary.issues),
    )
