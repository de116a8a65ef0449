"""One run of v3.0's vector_database benchmark, read from its files: recall and queries a second belong together."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from dlemu.mlperf.audit.run_settings import Setup
from dlemu.mlperf.audit.tolerant import count, mapping, number, numbers, read_json, text
from dlemu.results.finding import Finding

STATISTICS, VERDICT, RECALL = "statistics.json", "result_verdict.json", "recall_stats.json"
LATENCIES = ("mean_latency_ms", "p95_latency_ms", "p99_latency_ms", "p999_latency_ms")
_SAME = 1e-6  # relative: sums in another order differ by far less, other measurements by more
_TAKE = "copy the files from the run again"


@dataclass(frozen=True, kw_only=True)
class VectorLeaf:
    """One run, or one call of another phase."""

    path: str
    files: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    """`statistics.json` of the engine's own client, else summary.json."""
    recall_stats: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    verdict: Mapping[str, Any] = field(default_factory=dict)
    broken: tuple[Finding, ...] = ()
    setup: Setup = field(default_factory=Setup)
    """Always empty: the benchmark has no configuration of DLIO's."""

    @property
    def recall(self) -> float | None:
        """Share of the true neighbours that were found."""
        stated = self.recall_stats.get("recall_at_k", self.summary.get("recall"))
        return number(stated)

    @property
    def queries_per_second(self) -> float | None:
        """As printed."""
        return number(self.summary.get("throughput_qps"))


def is_vector_leaf(names: list[str]) -> bool:
    """Return whether a folder with these files is a run of vector_database."""
    return STATISTICS in names and ("config.json" in names or VERDICT in names)


def read_vector_leaf(folder: str) -> VectorLeaf:
    """Return what a folder holds; what can't be read is a finding of it."""
    broken: list[Finding] = []
    names = sorted(os.listdir(folder))

    def content(name: str | None) -> Mapping[str, Any]:
        return mapping(read_json(os.path.join(folder, name), broken)) if name in names and name else {}

    summary = content(STATISTICS) or content("summary.json")
    return VectorLeaf(
        path=folder,
        files=tuple(names),
        metadata=content(next((name for name in names if name.endswith("_metadata.json")), None)),
        summary=summary,
        recall_stats=mapping(summary.get("recall")) or content(RECALL),
        config=content("config.json"),
        verdict=content(VERDICT),
        broken=tuple(broken),
    )


def vector_numbers(leaf: VectorLeaf) -> Iterator[Finding]:
    """Yield what the files of a run contradict, and its recall beside its queries a second."""
    yield from leaf.broken
    yield from _metrics(leaf)
    yield from _differing(leaf)
    yield from _recall(leaf)
    yield from _truth(leaf)


def _metrics(leaf: VectorLeaf) -> Iterator[Finding]:
    lacking = [name for name in ("throughput_qps", *LATENCIES) if number(leaf.summary.get(name)) is None]
    if lacking:
        seen, wanted = f"no {', '.join(lacking)}", "queries per second and their latencies"
        yield Finding("error", "vdb.metrics", seen, wanted, "repeat the run with the tool's own client")


def _differing(leaf: VectorLeaf) -> Iterator[Finding]:
    stated, apart = leaf.summary, []
    queries, seconds, rate = (
        count(stated.get("total_queries"), 0),
        number(stated.get("total_time_seconds")),
        leaf.queries_per_second,
    )
    if (
        queries is not None
        and seconds
        and rate is not None
        and not math.isclose(rate, queries / seconds, rel_tol=_SAME)
    ):
        apart.append(f"throughput_qps is {rate:.6g}, {queries} queries in {seconds:.1f} s are {queries / seconds:.6g}")
    each = numbers(leaf.recall_stats.get("per_query_recall"))
    if each and leaf.recall is not None and not math.isclose(leaf.recall, fmean(each), rel_tol=_SAME, abs_tol=1e-9):
        apart.append(f"recall is {leaf.recall:.6g}, the mean of {len(each)} queries {fmean(each):.6g}")
    judged = number(mapping(leaf.verdict.get("recall_summary")).get("recall_at_k"))
    if (
        judged is not None
        and leaf.recall is not None
        and not math.isclose(judged, leaf.recall, rel_tol=_SAME, abs_tol=1e-9)
    ):
        apart.append(f"{VERDICT} has recall {judged:.6g}, {STATISTICS} {leaf.recall:.6g}")
    order = [
        number(stated.get(name)) for name in ("p95_latency_ms", "p99_latency_ms", "p999_latency_ms", "max_latency_ms")
    ]
    known = [value for value in order if value is not None]
    if known != sorted(known):
        apart.append(f"percentiles of latency fall: {', '.join(f'{value:.6g}' for value in known)} ms")
    failed = count(stated.get("failed_batches"))
    if failed:
        apart.append(f"{failed} batches failed")
    if apart:
        yield Finding("error", "vdb.differs", "; ".join(apart), "what the run's own counts give", _TAKE)


def _recall(leaf: VectorLeaf) -> Iterator[Finding]:
    called = text(leaf.verdict.get("result"))
    if leaf.recall is None:
        seen, wanted = "no recall", "a recall with the queries per second"
        yield Finding("error", "vdb.recall", seen, wanted, "repeat the run with recall")
    elif leaf.recall <= 0:
        seen = f"recall {leaf.recall:.2f}{f', called {called!r}' if called else ''}: no query found a true neighbour"
        wanted, fix = "neighbours that are found", "fix index or ground truth: these queries per second mean nothing"
        yield Finding("error", "vdb.recall", seen, wanted, fix)
    stated, config = leaf.summary, leaf.config
    vectors = count(mapping(leaf.verdict.get("flat_setup")).get("total_vectors"))
    words = (
        f"{config.get('index_type') or 'index not named'}",
        f"{vectors or '?'} vectors of {config.get('vector_dim') or '?'}",
        f"recall@{leaf.recall_stats.get('k', '?')} {_shown(leaf.recall)}, {_shown(leaf.queries_per_second)} queries/s",
        f"p95 {_shown(number(stated.get('p95_latency_ms')))} ms",
        f"called {called!r}" if called else "no verdict",
    )
    fix = "compare queries per second at equal recall only: no rule sets a minimum"
    yield Finding("info", "vdb.listed", ", ".join(words), "recall with queries per second", fix)


def _shown(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"


def _truth(leaf: VectorLeaf) -> Iterator[Finding]:
    """Recall is measured against all vectors (5.3.5)."""
    setup, wanted = mapping(leaf.verdict.get("flat_setup")), "a ground truth of every vector"
    if not leaf.verdict:
        seen = f"no {VERDICT}, of an older tool"
        yield Finding("warning", "vdb.truth", seen, wanted, "repeat the run with today's tool")
        return
    copied, total, share = (
        count(setup.get("copied_vectors"), 0),
        count(setup.get("total_vectors")),
        number(setup.get("coverage")),
    )
    short = copied is not None and total is not None and copied < total
    if setup.get("ok") is False or leaf.verdict.get("valid") is False or short or (share is not None and share < 1):
        seen = f"{VERDICT}: {leaf.verdict.get('result')}, {copied} of {total} vectors in the ground truth"
        yield Finding("error", "vdb.truth", seen, wanted, "rebuild the ground truth, and repeat the run")
