"""Audits dlemu's own results: recomputes summary.json from the rows of steps and facts.json, and compares."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from dlemu.contrib.mlperf.audit.tolerant import mapping, number, read_json, same_sum
from dlemu.contrib.mlperf.rules.known import Finding, by_rule
from dlemu.extend import UserError
from dlemu.results import LIVE, SUMMARY
from dlemu.results.kinds import kind_of, read_result

DLIO_FOLDER = "dlio"  # folder with DLIO's files in a result folder of dlemu
_OWN_NAME = re.compile(r"^dlemu(-\d+)?$")  # of the folder beside the results of `dlio_benchmark`
_TEXTS = re.compile(r"(entries of )?(issues|((write|read)\.)?limited_by\.(evidence|advice)|telemetry\.notes)|.*warning")
"""Keys that aren't compared: sentences, which follow from the codes and numbers beside them."""
_MOST_LISTED = 50


def is_own(folder: str) -> bool:
    """Return whether a folder is a run of dlemu, even if some of its files are missing or damaged."""
    if os.path.basename(os.path.normpath(folder)) == LIVE:
        return False  # part of the result in the folder above
    try:
        kind = kind_of(folder)
    except UserError:  # of a kind that is not installed
        return True
    return kind is not None and kind.is_job


def own_folder_of(folder: str) -> str | None:
    """Return dlemu's own result folder of the run whose DLIO files are in `folder`: its parent, or its newest child.

    Return None if there is none, or if `folder` holds no results of DLIO.
    """
    if not os.path.isfile(os.path.join(folder, SUMMARY)) or is_own(folder):
        return None
    above = os.path.normpath(os.path.join(folder, os.pardir))
    if os.path.basename(folder) == DLIO_FOLDER and is_own(above):
        return above
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir() and _OWN_NAME.match(entry.name)]
    newest_first = sorted(names, key=lambda name: (len(name), name), reverse=True)
    return next((path for name in newest_first if is_own(path := os.path.join(folder, name))), None)


def audit_own(folder: str) -> list[Finding]:
    """Read a run of dlemu, even a killed one, and return what its summary has that its rows and facts do not give."""
    findings: list[Finding] = []
    path = os.path.join(folder, SUMMARY)
    saved = read_json(path, findings) if os.path.lexists(path) else None
    try:
        run = read_result(folder)
        recomputed = msgspec.to_builtins(run.summary)
    except UserError as error:
        return [*findings, by_rule("result.broken", str(error))]
    failure = run.facts.failure
    if failure is not None:
        seen = f"a run of dlemu that did not complete: {failure.splitlines()[0][:200]}"
        fix = "run it again; `dlemu report` shows what was measured"
        findings.append(by_rule("no.training", seen, fix=fix))
    elif saved is None:
        findings.append(by_rule("result.broken", "a run of dlemu without summary.json"))
    return [*findings, *differences(mapping(saved), recomputed)]


def differences(printed: object, recomputed: object) -> Iterator[Finding]:
    """Yield a finding for each number or verdict of a summary.json that differs from the recomputed one.

    Keys that only one side has are not compared.
    """
    old, new = dict(_flatten(printed)), dict(_flatten(recomputed))
    keys = sorted(key for key in old.keys() & new.keys() if not _same(old[key], new[key]) and not _TEXTS.match(key))
    for key in keys[:_MOST_LISTED]:
        seen = f"summary.json: {key} is {str(old[key])[:120]}; recomputed {str(new[key])[:120]}"
        yield by_rule("summary.differs", seen)
    if len(keys) > _MOST_LISTED:
        yield by_rule("summary.differs", f"summary.json: {len(keys) - _MOST_LISTED} more values differ")


def _flatten(value: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each number and string with its key, as `metrics.au_percent.per_epoch[0]`, and the length of each list."""
    if isinstance(value, dict):
        if key:
            yield key, "a mapping"
        for name, item in value.items():
            yield from _flatten(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        yield f"entries of {key}", len(value)
        for index, item in enumerate(value):
            yield from _flatten(item, f"{key}[{index}]")
    else:
        yield key, value


def _same(old: Any, new: Any) -> bool:
    are_floats = {type(old), type(new)} in ({float}, {float, int})
    left, right = number(old), number(new)  # None: not finite, or an integer that no float can have
    return same_sum(left, right) if are_floats and left is not None and right is not None else bool(old == new)
