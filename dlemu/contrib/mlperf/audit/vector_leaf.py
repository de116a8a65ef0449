"""Reads one run of v3.0's vector_database benchmark, and lists its recall beside its queries per second.

Recall is the share of a query's true nearest neighbours that were found. An index answers faster the fewer it finds,
so queries per second mean nothing without recall.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlemu.contrib.mlperf.audit.run_settings import Setup
from dlemu.contrib.mlperf.audit.tolerant import mapping, number, read_json
from dlemu.contrib.mlperf.rules.known import by_rule
from dlemu.results.finding import Finding

_STATISTICS, _VERDICT, _RECALL = "statistics.json", "result_verdict.json", "recall_stats.json"


@dataclass(frozen=True, kw_only=True)
class VectorLeaf:
    """One run, or one call of another phase."""

    path: str
    files: tuple[str, ...]
    metadata: Mapping[str, Any]
    recall: float | None
    """Share of the true nearest neighbours that were found, 0 to 1."""
    queries_per_second: float | None
    broken: tuple[Finding, ...]
    setup: Setup = field(default_factory=Setup)
    """Always empty: the benchmark has no DLIO configuration."""


def is_vector_leaf(names: list[str]) -> bool:
    """Return whether a folder with these files is a run of vector_database."""
    return _STATISTICS in names and ("config.json" in names or _VERDICT in names)


def read_vector_leaf(folder: str) -> VectorLeaf:
    """Read the folder of a run; what can't be read becomes one of its findings (`broken`)."""
    broken: list[Finding] = []
    names = sorted(os.listdir(folder))

    def content(name: str | None) -> Mapping[str, Any]:
        return mapping(read_json(os.path.join(folder, name), broken)) if name in names and name else {}

    summary = content(_STATISTICS) or content("summary.json")
    recall = mapping(summary.get("recall")) or content(_RECALL)
    return VectorLeaf(
        path=folder,
        files=tuple(names),
        metadata=content(next((name for name in names if name.endswith("_metadata.json")), None)),
        recall=number(recall.get("recall_at_k", summary.get("recall"))),
        queries_per_second=number(summary.get("throughput_qps")),
        broken=tuple(broken),
    )


def vector_numbers(leaf: VectorLeaf) -> Iterator[Finding]:
    """Yield files that can't be read, and the run's recall beside its queries per second."""
    yield from leaf.broken
    recall, rate = leaf.recall, leaf.queries_per_second
    seen = ", ".join(
        f"{name} {'not known' if value is None else f'{value:.4g}'}"
        for name, value in (("recall", recall), ("queries/s", rate))
    )
    if recall is None or recall <= 0:
        yield by_rule("vdb.recall", seen)
    else:
        fix = "compare queries per second only at equal recall: no rule requires a minimum recall"
        yield by_rule("vdb.recall", seen, fix=fix, severity="info")
