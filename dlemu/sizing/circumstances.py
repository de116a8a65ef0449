"""Where the two sides of a comparison were measured, and what of it makes their difference more than the storage's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_ALIKE = ("processor", "cpu_usable", "memory_bytes", "kernel", "dlemu", "packages")
"""Facts of a host that measure storage differently when they differ."""


def read_summaries(folders: Iterable[str]) -> list[dict[str, Any]]:
    """Return the summary.json of each run folder that is still there."""
    found = []
    for folder in folders:
        path = os.path.join(folder, "summary.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as lines:
                found.append(json.load(lines))
    return found


def about(summaries: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return hosts, storage, devices, dataset and reading manner by the first summary; None when there is none."""
    if not summaries:
        return None
    first = summaries[0]
    return {
        "started_at": first["started_at"],
        "hosts": first["environment"].get("hosts", []),
        "storage": first["environment"].get("storage"),
        "devices": [one for one in (first.get("telemetry") or {}).get("devices", []) if one.get("counted")],
        "dataset": first["dataset"],
        "how": first["how"],
    }


def warnings(summaries: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return what the runs' summaries warn of concerning the page cache, each sentence once."""
    told = [(one["ranks"], (one.get("page_cache") or {}).get("warning")) for one in summaries]
    return tuple(dict.fromkeys(f"with {ranks} accelerators {text}" for ranks, text in told if text))


def differences(a: dict[str, Any] | None, b: dict[str, Any] | None) -> Iterator[str]:
    """Yield a sentence for whatever beside the storage is not the same; nothing where a side is not known."""
    if a is None or b is None:
        return
    names = [sorted(str(host["host"]) for host in side["hosts"]) for side in (a, b)]
    if names[0] != names[1]:
        hosts = f"A was measured on {_told(names[0])} and B on {_told(names[1])}"
        yield f"{hosts}: the difference is not the storage's alone"
    for key in _ALIKE:
        facts = [_facts(side["hosts"], key) for side in (a, b)]
        if facts[0] != facts[1]:
            yield f"the hosts' {key} was {_told(facts[0])} for A and {_told(facts[1])} for B"
    for key in sorted({*a["how"], *b["how"]}):
        values = [side["how"].get(key) for side in (a, b)]
        if values[0] != values[1]:
            yield f"{key} was {values[0]} for A and {values[1]} for B"
    for key in ("format", "num_files_train", "num_samples_per_file"):
        values = [side["dataset"].get(key) for side in (a, b)]
        if values[0] != values[1]:
            yield f"the datasets differ: {key} is {values[0]} for A and {values[1]} for B"


def _facts(hosts: Sequence[dict[str, Any]], key: str) -> list[str]:
    return sorted({_plain(host.get(key)) for host in hosts})


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return str(value)


def _told(values: Sequence[str]) -> str:
    return ", ".join(values[:4]) + (" ..." if len(values) > 4 else "") if values else "nothing known"
