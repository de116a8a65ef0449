"""Rules on system descriptions: each results/SYSTEM needs systems/SYSTEM.yaml and SYSTEM.pdf."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dlemu.contrib.mlperf.audit import tolerant
from dlemu.contrib.mlperf.audit.call_records import CallRecords
from dlemu.contrib.mlperf.audit.tolerant import folders_in, integer, mapping, nested, number, sequence, value_at
from dlemu.contrib.mlperf.check.submission_tree import Result, Submission
from dlemu.contrib.mlperf.rules.known import Finding, by_rule, by_rule_at, with_path

PLACEHOLDER = "FILL IN"  # text in a template where the submitter must fill in a value
REMAP_KEY = "remap_time_in_seconds"  # capability: the time in which other hosts get access to what one host wrote
_MEMORY_TOLERANCE = 0.10  # relative, between described and measured memory (2.1.9 of v3.0's checker)
_SIZE = r"(?<![-,.\w])(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?\b(?![,.\d]*\d|\s*%)"
_LIMIT_PATTERNS = (
    re.compile(_SIZE + r"\s*[\"']?\s*>\s*\S*memory\.(?:max|limit_in_bytes)", re.IGNORECASE),
    re.compile(r"\bmemory\.(?:max|limit_in_bytes)\s*[=:]\s*" + _SIZE, re.IGNORECASE),
    re.compile(r"\bMemoryMax\s*=\s*" + _SIZE),
)
"""A description states a memory limit as the shell command that sets it, or as the setting itself."""
_UNITS_GIB = {"": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_DESCRIPTION_SUFFIXES = (".yaml", ".yml", ".json")
_ALLOWED_SUFFIXES = (".yaml", ".pdf", ".md")  # all that systems/ may hold (2.1.7 of v3.0)


def check_systems(submission: Submission, calls: Sequence[CallRecords]) -> Iterator[Finding]:
    """Check the system descriptions of one submission, and compare them with its results."""
    folder, results = os.path.join(submission.path, "systems"), os.path.join(submission.path, "results")
    if not os.path.isdir(folder):
        return
    systems = set(folders_in(results))
    names = sorted(name for name in chain(*tolerant.entries_of(folder)) if not name.startswith("."))
    descriptions = {_stem(name): name for name in reversed(names) if _file_kind(name) == "text"}  # the first by name
    pdfs = {_stem(name) for name in names if _file_kind(name) == "pdf"}
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path) or not name.endswith(_ALLOWED_SUFFIXES):
            yield by_rule_at(path, "systems.files", f"{name} in systems/", "only .yaml, .pdf, .md files", "move it out")
        if os.path.isfile(path) and not os.path.getsize(path):
            yield by_rule_at(path, "files.empty", f"{name} has 0 bytes")
        if _file_kind(name) == "text" and _stem(name) not in systems:  # `_check_description` reads the others
            yield from _read_description(path)[1]
    for stem in sorted(pdfs - descriptions.keys()):
        yield by_rule_at(os.path.join(folder, f"{stem}.pdf"), "systems.files", f"{stem}.pdf without {stem}.yaml")
    if submission.edition.checks_tree:
        for stem in sorted(descriptions.keys() - systems):
            seen = f"systems/{stem} without results/{stem}"
            yield by_rule_at(folder, "systems.missing", seen, fix=f"add results/{stem}")
    for system in sorted(systems):
        kinds = (("yaml", descriptions), ("pdf", pdfs))
        missing = [f"{system}.{suffix}" for suffix, stems in kinds if system not in stems]
        if missing:
            rule = "systems.pdf" if system in descriptions else "systems.missing"
            yield by_rule_at(folder, rule, f"results/{system}, but no {' and no '.join(missing)}")
        if system in descriptions:
            system_calls = [call for call in calls if call.path.startswith(os.path.join(results, system, ""))]
            yield from _check_description(os.path.join(folder, descriptions[system]), system, system_calls)


@dataclass(frozen=True)
class StatedLimit:
    """A limit on each host's memory that the system description at `path` states."""

    path: str
    memory_gib: float


def stated_limit(result: Result[Any]) -> StatedLimit | None:
    """Return the control group's memory limit that the system's description states; None if it states none.

    The rules allow such a limit if the description says how it was set; the dataset must then be 5 times the limit.
    """
    for path in _description_paths(result.path):
        description = tolerant.read_text(path, []) or ""  # as text, so that malformed JSON works, too
        matches = [match for pattern in _LIMIT_PATTERNS for match in pattern.finditer(description)]
        if matches:
            limits_gib = [float(match["number"]) * _UNITS_GIB[match["unit"].upper()] for match in matches]
            return StatedLimit(path, max(limits_gib))
    return None


def described_system(result_path: str) -> tuple[str, Mapping[str, Any]]:
    """Return the path of the description of a result's system, and its `system_under_test`; both empty without one."""
    for path in _description_paths(result_path):
        under_test = mapping(value_at(_read_description(path)[0], "system_under_test"))
        if under_test:
            return path, under_test
    return "", {}


def described_capabilities(result_path: str) -> tuple[str, Mapping[str, Any]]:
    """Return the path of the description of a result's system, and its capabilities; both empty without one."""
    path, under_test = described_system(result_path)
    return path, mapping(value_at(under_test, "solution.capabilities"))


def remap_seconds(capabilities: Mapping[str, Any]) -> int | None:
    """Return the stated remapping time; None if it is no whole number of seconds."""
    value = capabilities.get(REMAP_KEY)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _description_paths(result_path: str) -> list[str]:
    """Return the paths of the descriptions of SYSTEM for a result in results/SYSTEM, or of the only one in systems/."""
    folders = result_path.split(os.sep)
    if "results" not in folders:
        return []
    results = len(folders) - 1 - folders[::-1].index("results")
    folder, system = os.sep.join([*folders[:results], "systems"]), "".join(folders[results + 1 : results + 2])
    names = [name for name in tolerant.entries_of(folder)[0] if _file_kind(name) == "text"]
    if len(names) > 1:
        names = [name for name in names if _stem(name) == system]
    return [os.path.join(folder, name) for name in names]


def _file_kind(name: str) -> str:
    suffix = os.path.splitext(name)[1].lower()
    return "text" if suffix in _DESCRIPTION_SUFFIXES else suffix.removeprefix(".")


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _check_description(path: str, system: str, calls: Sequence[CallRecords]) -> Iterator[Finding]:
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
        yield from with_path(call.path, _matches_run(call, under_test))


def _read_description(path: str) -> tuple[Any, list[Finding]]:
    """Return the content of a description, and a finding if it can't be read."""
    broken: list[Finding] = []
    content = tolerant.read_json(path, broken) if path.lower().endswith(".json") else tolerant.read_yaml(path, broken)
    return content, list(with_path(path, broken))


def _matches_run(call: CallRecords, under_test: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the hosts of a call, and their memory, with the description (2.1.9 of v3.0)."""
    clients = sequence(under_test.get("clients"))
    hosts, described_gib = 0, 0.0
    for client in clients:
        quantity = integer(value_at(client, "quantity")) or 0
        hosts += quantity
        capacity_gib = number(value_at(client, "chassis.memory_capacity"))
        described_gib += quantity * (capacity_gib or math.nan)  # with NaN, no memory is compared below
    if clients and call.hosts and hosts != call.hosts:
        yield by_rule("systems.hosts", f"hosts of the run: {call.hosts}; described by clients: {hosts}")
    measured_gib = call.memory_gib if hosts == call.hosts else None
    if measured_gib and abs(measured_gib - described_gib) > _MEMORY_TOLERANCE * described_gib:
        yield by_rule("systems.hosts", f"the hosts measured {measured_gib:.1f} GiB, clients state {described_gib:g}")
    multi_host = value_at(under_test, "solution.capabilities.multi_host")
    if multi_host is False and call.hosts and call.hosts > 1:
        yield by_rule("systems.hosts", f"multi_host is false, the run was on {call.hosts} hosts")
