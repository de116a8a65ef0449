"""Reads one run of v3.0's vector_database benchmark, and lists its recall beside its queries per second.

Recall is the share of a query's true nearest neighbours that were found. An index answers faster the fewer it finds,
so queries per second mean nothing without recall.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from dlemu.contrib.mlperf.audit.run_settings import Setup
from dlemu.contrib.mlperf.audit.tolerant import count, mapping, number, numbers, read_json, text
from dlemu.results.finding import Finding

STATISTICS, VERDICT, RECALL = "statistics.json", "result_verdict.json", "recall_stats.json"
LATENCIES = ("mean_latency_ms", "p95_latency_ms", "p99_latency_ms", "p999_latency_ms")
_MIN_TAIL = 0.04
"""A twentieth of all latencies is at least their 95th percentile: so the mean is at least about that share of it."""
_MAX_BUSY = 1.01
"""Of the client's time; more is a contradiction: 1 % for a clock that is read before the last batch has ended."""
_SUM_TOLERANCE = 1e-6  # relative: a different order of summing changes far less, a different measurement more


@dataclass(frozen=True, kw_only=True)
class VectorLeaf:
    """One run, or one call of another phase."""

    path: str
    files: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    """statistics.json, by the engine's own client, or else summary.json."""
    recall_stats: Mapping[str, Any] = field(default_factory=dict)
    """The recall in the summary, or else in recall_stats.json."""
    recall_file: Mapping[str, Any] = field(default_factory=dict)
    """recall_stats.json."""
    config: Mapping[str, Any] = field(default_factory=dict)
    verdict: Mapping[str, Any] = field(default_factory=dict)
    broken: tuple[Finding, ...] = ()
    setup: Setup = field(default_factory=Setup)
    """Always empty: the benchmark has no DLIO configuration."""

    @property
    def recall(self) -> float | None:
        """Share of the true nearest neighbours that were found, 0 to 1."""
        stated = self.recall_stats.get("recall_at_k", self.summary.get("recall"))
        return number(stated)

    @property
    def queries_per_second(self) -> float | None:
        """Printed throughput."""
        return number(self.summary.get("throughput_qps"))

    @property
    def measured(self) -> tuple[float, ...]:
        """The measured time and latencies that it has: no two runs have the same."""
        stated = (number(self.summary.get(name)) for name in ("total_time_seconds", *LATENCIES))
        return tuple(value for value in stated if value is not None)


def is_vector_leaf(names: list[str]) -> bool:
    """Return whether a folder with these files is a run of vector_database."""
    return STATISTICS in names and ("config.json" in names or VERDICT in names)


def read_vector_leaf(folder: str) -> VectorLeaf:
    """Read the folder of a run; what can't be read becomes one of its findings (`broken`)."""
    broken: list[Finding] = []
    names = sorted(os.listdir(folder))

    def content(name: str | None) -> Mapping[str, Any]:
        return mapping(read_json(os.path.join(folder, name), broken)) if name in names and name else {}

    summary = content(STATISTICS) or content("summary.json")
    recall_file = content(RECALL)
    return VectorLeaf(
        path=folder,
        files=tuple(names),
        metadata=content(next((name for name in names if name.endswith("_metadata.json")), None)),
        summary=summary,
        recall_stats=mapping(summary.get("recall")) or recall_file,
        recall_file=recall_file,
        config=content("config.json"),
        verdict=content(VERDICT),
        broken=tuple(broken),
    )


def vector_numbers(leaf: VectorLeaf) -> Iterator[Finding]:
    """Yield contradictions in a run's files, and its recall beside its queries per second."""
    yield from leaf.broken
    yield from _metrics(leaf)
    yield from _differences(leaf)
    yield from _recall(leaf)
    yield from _ground_truth(leaf)


def _metrics(leaf: VectorLeaf) -> Iterator[Finding]:
    lacking = [name for name in ("throughput_qps", *LATENCIES) if number(leaf.summary.get(name)) is None]
    if lacking:
        seen, wanted = f"no {', '.join(lacking)}", "queries per second and their latencies"
        yield Finding("error", "vdb.metrics", seen, wanted, "repeat the run with the tool's own client")


def _differences(leaf: VectorLeaf) -> Iterator[Finding]:
    stated, problems = leaf.summary, []
    queries, seconds = count(stated.get("total_queries"), 0), number(stated.get("total_time_seconds"))
    rate = leaf.queries_per_second
    if queries is not None and seconds and rate is not None and not _close(rate, queries / seconds):
        problems.append(
            f"throughput_qps is {rate:.6g}, {queries} queries in {seconds:.1f} s are {queries / seconds:.6g}"
        )
    each = numbers(leaf.recall_stats.get("per_query_recall"))
    if each and leaf.recall is not None and not _close(leaf.recall, fmean(each)):
        problems.append(f"recall is {leaf.recall:.6g}, the mean of {len(each)} queries is {fmean(each):.6g}")
    if leaf.recall is not None and leaf.recall > 1:
        problems.append(f"recall is {leaf.recall:.6g}")
    for name in ("recall_at_k", "k", "num_queries_evaluated"):
        both = [number(recall.get(name)) for recall in (leaf.recall_stats, leaf.recall_file)]
        different = sorted({value for value in both if value is not None})
        if len(different) > 1:
            problems.append(f"{name} is {' and '.join(f'{value:.6g}' for value in different)}")
    judged = number(mapping(leaf.verdict.get("recall_summary")).get("recall_at_k"))
    if judged is not None and leaf.recall is not None and not _close(judged, leaf.recall):
        problems.append(f"recall is {judged:.6g} in {VERDICT}, {leaf.recall:.6g} in {STATISTICS}")
    order = [
        number(stated.get(name)) for name in ("p95_latency_ms", "p99_latency_ms", "p999_latency_ms", "max_latency_ms")
    ]
    known = [value for value in order if value is not None]
    if known != sorted(known):
        problems.append(f"latency percentiles do not increase: {', '.join(f'{value:.6g}' for value in known)} ms")
    mean, p95, most = (number(stated.get(f"{name}_latency_ms")) for name in ("mean", "p95", "max"))
    if mean is not None and ((most is not None and mean > most) or (p95 is not None and mean < _MIN_TAIL * p95)):
        problems.append(f"mean_latency_ms is {mean:.6g}, which no latencies with these percentiles have")
    busy, processes = _busy_seconds(leaf, queries, mean), count(leaf.config.get("processes"))
    if busy is not None and seconds and processes and busy > processes * seconds * _MAX_BUSY:
        problems.append(
            f"{queries} queries of {mean:.6g} ms on average are {busy:.1f} s of work, the client's processes had "
            f"{processes * seconds:.1f} s"
        )
    failed = count(stated.get("failed_batches"))
    if failed:
        problems.append(f"{failed} batches failed")
    if problems:
        fix = "copy the files from the run again"
        yield Finding("error", "vdb.differs", "; ".join(problems), "numbers that follow from the run's own counts", fix)


def _busy_seconds(leaf: VectorLeaf, queries: int | None, mean_ms: float | None) -> float | None:
    """Return how long the client's processes at least waited for answers, each of them for one batch at a time."""
    if queries is None or mean_ms is None:
        return None
    return queries / (count(leaf.config.get("batch_size")) or 1) * mean_ms / 1e3


def _close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=_SUM_TOLERANCE, abs_tol=1e-9)


def _recall(leaf: VectorLeaf) -> Iterator[Finding]:
    verdict = text(leaf.verdict.get("result"))
    if leaf.recall is None:
        seen, wanted = "no recall", "recall beside the queries per second"
        yield Finding("error", "vdb.recall", seen, wanted, "repeat the run with recall")
    elif leaf.recall <= 0:
        seen = f"recall {leaf.recall:.2f}{f', verdict {verdict!r}' if verdict else ''}: no query found a true neighbour"
        wanted, fix = "neighbours that are found", "fix index or ground truth: these queries per second mean nothing"
        yield Finding("error", "vdb.recall", seen, wanted, fix)
    stated, config = leaf.summary, leaf.config
    vectors = count(mapping(leaf.verdict.get("flat_setup")).get("total_vectors"))
    words = (
        f"{config.get('index_type') or 'index not named'}",
        f"{vectors or '?'} vectors of {config.get('vector_dim') or '?'}",
        f"recall@{leaf.recall_stats.get('k', '?')} {_shown(leaf.recall)}, {_shown(leaf.queries_per_second)} queries/s",
        f"p95 {_shown(number(stated.get('p95_latency_ms')))} ms",
        f"verdict {verdict!r}" if verdict else "no verdict",
    )
    fix = "compare queries per second only at equal recall: no rule requires a minimum recall"
    yield Finding("info", "vdb.listed", ", ".join(words), "recall beside queries per second", fix)


def _shown(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"


def _ground_truth(leaf: VectorLeaf) -> Iterator[Finding]:
    """Check that the ground truth, against which recall is measured, covers all vectors (5.3.5)."""
    setup, wanted = mapping(leaf.verdict.get("flat_setup")), "a ground truth that covers every vector"
    if not leaf.verdict:
        seen = f"no {VERDICT}: an older version of the tool"
        yield Finding("warning", "vdb.truth", seen, wanted, "repeat the run with the current version")
        return
    copied, total = count(setup.get("copied_vectors"), 0), count(setup.get("total_vectors"))
    share = number(setup.get("coverage"))
    short = copied is not None and total is not None and copied < total
    result = text(leaf.verdict.get("result"))  # of another one than `valid` the tool itself exits with an error
    valid = leaf.verdict.get("valid")
    judged_valid = valid is not False and (result or ("valid" if valid else "no result")).lower() == "valid"
    if setup.get("ok") is False or not judged_valid or short or (share is not None and share < 1):
        seen = f"{VERDICT}: {result}, {copied} of {total} vectors in the ground truth"
        yield Finding("error", "vdb.truth", seen, wanted, "rebuild the ground truth, and repeat the run")
