"""Rules on the descriptions of systems: systems/SYSTEM.yaml (v1.0: .json) and .pdf beside results/SYSTEM."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlemu.mlperf.audit.tolerant import count, mapping, number, read_json, read_text, read_yaml
from dlemu.mlperf.check.submission_tree import Result, Submission
from dlemu.mlperf.check.system_schema import PLACEHOLDER, breaches, is_blank
from dlemu.results.finding import Finding, Located, Severity

if TYPE_CHECKING:
    from dlemu.mlperf.check.checkpoint_result import CheckpointResult

_MEMORY_TOLERANCE = 0.10
"""Memory of a host by its label and by its system differ by up to this share (2.1.9 of v3.0's checker)."""
_SIZE = r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?\b"
_LIMITS = (
    re.compile(_SIZE + r"\s*[\"']?\s*>\s*\S*memory\.(?:max|limit_in_bytes)", re.IGNORECASE),
    re.compile(r"\bmemory\.(?:max|limit_in_bytes)\s*[=:]\s*" + _SIZE, re.IGNORECASE),
    re.compile(r"\bMemoryMax\s*=\s*" + _SIZE),
)
"""How a description states the limit: by the command that sets it, or by the setting."""
_UNITS_GIB = {"": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_DESCRIPTIONS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class RanOn:
    """What a call ran on, by its own summary."""

    path: str
    hosts: int | None
    memory_gib: float | None


def ran_on(results: Sequence[Result], checkpoints: Sequence[CheckpointResult]) -> list[RanOn]:
    """Return what every run and call ran on."""
    runs = [RanOn(leaf.path, leaf.printed.hosts, leaf.printed.memory_gib) for one in results for leaf in one.runs]
    return runs + [RanOn(leaf.path, leaf.hosts, leaf.memory_gib) for one in checkpoints for leaf in one.leaves]


def check_systems(submission: Submission, calls: Sequence[RanOn]) -> Iterator[Located]:
    """Hold the descriptions of one submission against its results."""
    folder = os.path.join(submission.path, "systems")
    if not os.path.isdir(folder):
        return
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    for name in names:
        if os.path.isfile(os.path.join(folder, name)) and not os.path.getsize(os.path.join(folder, name)):
            finding = Finding("error", "files.empty", f"{name} has 0 bytes", "the description", "write it")
            yield Located(os.path.join(folder, name), finding)
    stems = {kind: {_stem(name) for name in names if _kind(name) == kind} for kind in ("text", "pdf")}
    yield from _only_pairs(submission, folder, names, stems)
    systems = _systems(submission)
    for system in sorted(systems):
        if system not in stems["text"] or system not in stems["pdf"]:
            lacking = [kind for kind in ("text", "pdf") if system not in stems[kind]]
            lacking_names = " and ".join(
                f"{system}.{_suffix(submission) if kind == 'text' else 'pdf'}" for kind in lacking
            )
            rule = "systems.pdf" if lacking == ["pdf"] else "systems.missing"
            fix = f"describe the system: {os.path.join(folder, lacking_names.split(' and ')[0])}"
            finding = Finding(
                _severity(submission), rule, f"results/{system}, but no {lacking_names}", "a text file and a pdf", fix
            )
            yield Located(folder, finding)
        mine = [call for call in calls if call.path.startswith(os.path.join(submission.path, "results", system, ""))]
        yield from _described(submission, folder, system, names, mine)
    for name in names:
        if _kind(name) == "text" and _stem(name) not in systems:  # of the others, with their system
            _, broken = _content(os.path.join(folder, name))
            yield from broken
    for stem in sorted(stems["text"] - systems) if submission.edition.checks_tree else ():
        fix = f"remove it, or add results/{stem}"
        seen = f"systems/{stem} without results/{stem}"
        yield Located(folder, Finding("error", "systems.missing", seen, "results for each description", fix))


@dataclass(frozen=True)
class StatedLimit:
    """What a system's description says of a limit to its hosts' memory."""

    path: str
    memory_gib: float
    """Of each host."""


def stated_limit(result: Result) -> StatedLimit | None:
    """Return the memory limit by a control group that the result's system description states, None without one.

    The rules allow to limit the hosts' memory when the description says how; 5 times the limit is then enough.
    """
    for path in _descriptions_of(result.path):
        limits = list(_limits_gib(read_text(path, []) or ""))  # also of a file that is not quite JSON
        if limits:
            return StatedLimit(path, max(limits))
    return None


def described_system(result_path: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the file that describes the system of a result, and its `system_under_test`; None without one."""
    for path in _descriptions_of(result_path):
        under_test = mapping(mapping(_content(path)[0]).get("system_under_test"))
        if under_test:
            return path, under_test
    return None


def _descriptions_of(result_path: str) -> list[str]:
    """Return the files beside results/SYSTEM/... that describe SYSTEM, or the only description that there is."""
    folders = result_path.split(os.sep)
    if "results" not in folders:
        return []
    place = len(folders) - 1 - folders[::-1].index("results")
    folder, system = os.sep.join([*folders[:place], "systems"]), "".join(folders[place + 1 : place + 2])
    if not os.path.isdir(folder):
        return []
    names = sorted(name for name in os.listdir(folder) if _kind(name) == "text")
    mine = [name for name in names if _stem(name) == system] or (names if len(names) == 1 else [])
    return [os.path.join(folder, name) for name in mine]


def _limits_gib(description: str) -> Iterator[float]:
    for pattern in _LIMITS:
        for match in pattern.finditer(description):
            number_of, unit = match["number"], match["unit"].upper()
            yield float(number_of) * _UNITS_GIB[unit]


def _severity(submission: Submission) -> Severity:
    return "error" if submission.edition.checks_tree else "warning"


def _suffix(submission: Submission) -> str:
    return "json" if submission.edition.name == "1.0" else "yaml"


def _kind(name: str) -> str:
    suffix = os.path.splitext(name)[1].lower()
    return "text" if suffix in _DESCRIPTIONS else suffix.removeprefix(".")


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _systems(submission: Submission) -> set[str]:
    folder = os.path.join(submission.path, "results")
    if not os.path.isdir(folder):
        return set()
    return {entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")}


def _only_pairs(
    submission: Submission, folder: str, names: list[str], stems: Mapping[str, set[str]]
) -> Iterator[Located]:
    if not submission.edition.checks_tree:
        return
    for name in names:
        if os.path.isdir(os.path.join(folder, name)) or _kind(name) not in ("text", "pdf", "md"):
            finding = Finding("error", "systems.files", name, "SYSTEM.yaml, SYSTEM.pdf and *.md", f"move {name} away")
            yield Located(os.path.join(folder, name), finding)
    for stem in sorted(stems["pdf"] - stems["text"]):
        fix = "describe the system in a yaml file as well"
        finding = Finding("error", "systems.files", f"{stem}.pdf without {stem}.yaml", "both", fix)
        yield Located(os.path.join(folder, f"{stem}.pdf"), finding)


def _described(
    submission: Submission, folder: str, system: str, names: list[str], calls: Sequence[RanOn]
) -> Iterator[Located]:
    name = next((name for name in names if _stem(name) == system and _kind(name) == "text"), None)
    if name is None:
        return
    path = os.path.join(folder, name)
    content, broken = _content(path)
    yield from broken
    under_test = mapping(mapping(content).get("system_under_test"))
    if not under_test:
        if submission.edition.checks_tree and not broken:
            fix = "take the template of the edition"
            finding = Finding("error", "systems.files", "no system_under_test", "the edition's description", fix)
            yield Located(path, finding)
        return
    blanks = sum(is_blank(value) for value in _leaves(content))
    if blanks:
        seen, fix = f"{PLACEHOLDER!r} stands in {blanks} of its fields", "fill them in"
        yield Located(path, Finding(_severity(submission), "systems.unfilled", seen, "the system as it is", fix))
    if submission.edition.checks_tree:
        wrong = list(breaches(content))
        if wrong:
            more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
            seen, fix = "; ".join(wrong[:4]) + more, "take the edition's template and its allowed values"
            yield Located(
                path, Finding("error", "systems.schema", seen, "fields as the edition's schema has them", fix)
            )
    solution = mapping(under_test.get("solution"))
    if solution.get("submission_name") != system:
        seen = f"submission_name is {solution.get('submission_name')!r}"
        finding = Finding("error", "systems.name", seen, f"{system!r}, as its folder", "name both the same")
        yield Located(path, finding)
    for call in calls:
        yield from _as_it_ran(call, under_test)


def _content(path: str) -> tuple[Any, list[Located]]:
    """Return what a description holds, and what keeps it from being read."""
    broken: list[Finding] = []
    content = read_json(path, broken) if path.lower().endswith(".json") else read_yaml(path, broken)
    return content, [Located(path, finding) for finding in broken]


def _as_it_ran(printed: RanOn, under_test: Mapping[str, Any]) -> Iterator[Located]:
    """Compare hosts and their memory with the description (2.1.9 of v3.0)."""
    path = printed.path
    raw = under_test.get("clients")
    clients = [mapping(client) for client in raw] if isinstance(raw, list) else []
    hosts = sum(count(client.get("quantity"), 0) or 0 for client in clients)
    fix = "describe the hosts that ran"
    if clients and printed.hosts and hosts != printed.hosts:
        seen = f"hosts of the run: {printed.hosts}; that clients describe: {hosts}"
        yield Located(path, Finding("error", "systems.hosts", seen, "the same number", fix))
    label = number(mapping(clients[0].get("chassis")).get("memory_capacity")) if len(clients) == 1 else None
    if label and printed.memory_gib and printed.hosts:
        measured = printed.memory_gib / printed.hosts
        if abs(measured - label) > _MEMORY_TOLERANCE * label:
            seen = f"hosts measured {measured:.1f} GiB each, clients say {label:g}"
            yield Located(path, Finding("error", "systems.hosts", seen, "within 10 %", fix))
    several = mapping(mapping(under_test.get("solution")).get("capabilities")).get("multi_host")
    if several is False and printed.hosts and printed.hosts > 1:
        seen = f"multi_host is false, the run was on {printed.hosts} hosts"
        yield Located(path, Finding("error", "systems.hosts", seen, "multi_host: true", fix))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
