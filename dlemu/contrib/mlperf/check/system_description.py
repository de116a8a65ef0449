"""Rules on system descriptions: each results/SYSTEM needs systems/SYSTEM.yaml and SYSTEM.pdf."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlemu.contrib.mlperf.audit.papers import Papers
from dlemu.contrib.mlperf.audit.tolerant import (
    integer,
    mapping,
    nested,
    number,
    read_json,
    read_text,
    read_yaml,
    value_at,
)
from dlemu.contrib.mlperf.check.submission_tree import Result, Submission, folders_in
from dlemu.contrib.mlperf.rules.known import Finding, at, by_rule, by_rule_at

PLACEHOLDER = "FILL IN"
"""Text in a template where the submitter must fill in a value."""
_MEMORY_TOLERANCE = 0.10
"""Described and measured memory of a host may differ by up to this share (2.1.9 of v3.0's checker)."""
_SIZE = r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?\b"
_LIMIT_PATTERNS = (
    re.compile(_SIZE + r"\s*[\"']?\s*>\s*\S*memory\.(?:max|limit_in_bytes)", re.IGNORECASE),
    re.compile(r"\bmemory\.(?:max|limit_in_bytes)\s*[=:]\s*" + _SIZE, re.IGNORECASE),
    re.compile(r"\bMemoryMax\s*=\s*" + _SIZE),
)
"""How a description can state a memory limit: as the shell command that sets it, or as the setting itself."""
_UNITS_GIB = {"": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_DESCRIPTION_SUFFIXES = (".yaml", ".yml", ".json")


def check_systems(submission: Submission, calls: Sequence[Papers]) -> Iterator[Finding]:
    """Check the system descriptions of one submission, and compare them with its results."""
    folder, results = os.path.join(submission.path, "systems"), os.path.join(submission.path, "results")
    if not os.path.isdir(folder):
        return
    systems = set(folders_in(results))
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    texts = {_stem(name): name for name in reversed(names) if _file_kind(name) == "text"}
    pdfs = {_stem(name) for name in names if _file_kind(name) == "pdf"}
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.getsize(path):
            yield by_rule_at(path, "files.empty", f"{name} has 0 bytes")
        if _file_kind(name) == "text" and _stem(name) not in systems:  # the others are read with their system
            yield from _read_description(path)[1]
    for stem in sorted(pdfs - texts.keys()):
        yield by_rule_at(os.path.join(folder, f"{stem}.pdf"), "systems.files", f"{stem}.pdf without {stem}.yaml")
    for stem in sorted(texts.keys() - systems) if submission.edition.checks_tree else ():
        yield by_rule_at(folder, "systems.missing", f"systems/{stem} without results/{stem}", fix=f"add results/{stem}")
    for system in sorted(systems):
        found = {"yaml": system in texts, "pdf": system in pdfs}
        lacking = [f"{system}.{suffix}" for suffix, is_there in found.items() if not is_there]
        if lacking:
            rule = "systems.pdf" if found["yaml"] else "systems.missing"
            yield by_rule_at(folder, rule, f"results/{system}, but no {' and no '.join(lacking)}")
        if system in texts:
            mine = [call for call in calls if call.path.startswith(os.path.join(results, system, ""))]
            yield from _check_description(os.path.join(folder, texts[system]), system, mine)


@dataclass(frozen=True)
class StatedLimit:
    """A limit to the hosts' memory that a system description states."""

    path: str
    """The description's."""
    memory_gib: float
    """Of each host."""


def stated_limit(result: Result[Any]) -> StatedLimit | None:
    """Return the control group's memory limit that the result's system description states; None without one.

    The rules allow limiting the hosts' memory if the description says how: then the dataset need only be 5 times the
    limit.
    """
    for path in _description_paths(result.path):
        limits = list(_limits_gib(read_text(path, []) or ""))  # read as text, so that also malformed JSON works
        if limits:
            return StatedLimit(path, max(limits))
    return None


def described_system(result_path: str) -> tuple[str, Mapping[str, Any]]:
    """Return the path of the description of a result's system, and its `system_under_test`; empty without one."""
    for path in _description_paths(result_path):
        under_test = mapping(value_at(_read_description(path)[0], "system_under_test"))
        if under_test:
            return path, under_test
    return "", {}


def _description_paths(result_path: str) -> list[str]:
    """Return the paths of the descriptions of SYSTEM for a result in results/SYSTEM, or of the only description."""
    folders = result_path.split(os.sep)
    if "results" not in folders:
        return []
    place = len(folders) - 1 - folders[::-1].index("results")
    folder, system = os.sep.join([*folders[:place], "systems"]), "".join(folders[place + 1 : place + 2])
    if not os.path.isdir(folder):
        return []
    names = sorted(name for name in os.listdir(folder) if _file_kind(name) == "text")
    mine = [name for name in names if _stem(name) == system] or (names if len(names) == 1 else [])
    return [os.path.join(folder, name) for name in mine]


def _limits_gib(description: str) -> Iterator[float]:
    for pattern in _LIMIT_PATTERNS:
        for match in pattern.finditer(description):
            yield float(match["number"]) * _UNITS_GIB[match["unit"].upper()]


def _file_kind(name: str) -> str:
    suffix = os.path.splitext(name)[1].lower()
    return "text" if suffix in _DESCRIPTION_SUFFIXES else suffix.removeprefix(".")


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _check_description(path: str, system: str, calls: Sequence[Papers]) -> Iterator[Finding]:
    content, broken = _read_description(path)
    yield from broken
    under_test = mapping(value_at(content, "system_under_test"))
    if not under_test:
        if not broken:
            yield by_rule_at(path, "systems.files", "no system_under_test")
        return
    blanks = sum(isinstance(value, str) and value.startswith(PLACEHOLDER) for _, value in nested(content))
    if blanks:
        yield by_rule_at(path, "systems.unfilled", f"{PLACEHOLDER!r} is still in {blanks} of its fields")
    name = value_at(under_test, "solution.submission_name")
    if name != system:
        yield by_rule_at(path, "systems.name", f"submission_name is {name!r}", f"{system!r}, like its folder")
    for call in calls:
        yield from at(call.path, _matches_run(call, under_test))


def _read_description(path: str) -> tuple[Any, list[Finding]]:
    """Return the content of a description, and findings on what keeps it from being read."""
    broken: list[Finding] = []
    content = read_json(path, broken) if path.lower().endswith(".json") else read_yaml(path, broken)
    return content, list(at(path, broken))


def _matches_run(call: Papers, under_test: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the hosts of a call, and their memory, with the description (2.1.9 of v3.0)."""
    raw = under_test.get("clients")
    clients = [mapping(client) for client in raw] if isinstance(raw, list) else []
    quantities = [integer(client.get("quantity"), 0) or 0 for client in clients]
    capacities = [number(value_at(client, "chassis.memory_capacity")) or math.nan for client in clients]
    hosts = sum(quantities)
    if clients and call.hosts and hosts != call.hosts:
        yield by_rule("systems.hosts", f"hosts of the run: {call.hosts}; described by clients: {hosts}")
    described = sum(quantity * gib for quantity, gib in zip(quantities, capacities, strict=True))
    measured = call.memory_gib if hosts == call.hosts else None
    if measured and abs(measured - described) > _MEMORY_TOLERANCE * described:
        yield by_rule("systems.hosts", f"the hosts measured {measured:.1f} GiB, clients state {described:g}")
    multi_host = value_at(under_test, "solution.capabilities.multi_host")
    if multi_host is False and call.hosts and call.hosts > 1:
        yield by_rule("systems.hosts", f"multi_host is false, the run was on {call.hosts} hosts")
