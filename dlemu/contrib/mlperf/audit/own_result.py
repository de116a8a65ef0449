"""Audits dlemu's own results: compares summary.json with the numbers recomputed from the rows and facts.json."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from dlemu.contrib.mlperf.audit.tolerant import folders_in, mapping, number, read_json, same_sum
from dlemu.contrib.mlperf.rules.known import Finding, by_rule
from dlemu.extend import UserError
from dlemu.results import LIVE, SUMMARY
from dlemu.results.kinds import kind_of, read_result

DLIO_FOLDER = "dlio"  # folder with DLIO's files in a result folder of dlemu
_OWN_NAME = re.compile(r"^dlemu(-\d+)?$")  # name of dlemu's result folder among DLIO's files by `dlio_benchmark`
_TEXTS = re.compile(r"(entries of )?(issues|((write|read)\.)?limited_by\.(evidence|advice)|telemetry\.notes)")
"""Keys of sentences, which are not compared: they follow from the codes and numbers beside them."""
_MAX_LISTED = 50


def is_own(folder: str) -> bool:
    """Return whether a folder is a run of dlemu, even if some of its files are missing or damaged."""
    if os.path.basename(os.path.normpath(folder)) == LIVE:
        return False  # belongs to the result in the parent folder
    try:
        kind = kind_of(folder)
    except UserError:  # its kind is not installed
        return True
    return kind is not None and kind.is_job


def own_folder_of(folder: str) -> str | None:
    """Return dlemu's own folder of the run with DLIO's files in `folder`: its parent or newest subfolder; else None."""
    if not os.path.isfile(os.path.join(folder, SUMMARY)) or is_own(folder):
        return None
    parent = os.path.normpath(os.path.join(folder, os.pardir))
    if os.path.basename(folder) == DLIO_FOLDER and is_own(parent):
        return parent
    names = filter(_OWN_NAME.match, folders_in(folder))
    newest_first = sorted(names, key=lambda name: (len(name), name), reverse=True)
    return next(filter(is_own, (os.path.join(folder, name) for name in newest_first)), None)


def audit_own(folder: str) -> list[Finding]:
    """Return findings on a run of dlemu, even a killed one: its summary must follow from its rows and facts."""
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
    """Report each number or verdict of a summary.json that differs from the recomputed one, if both have its key."""
    saved, new = dict(_flatten(printed)), dict(_flatten(recomputed))
    keys = sorted(key for key in saved.keys() & new.keys() if not _same(saved[key], new[key]) and not _TEXTS.match(key))
    for key in keys[:_MAX_LISTED]:
        seen = f"summary.json: {key} is {str(saved[key])[:120]}; recomputed {str(new[key])[:120]}"
        yield by_rule("summary.differs", seen)
    if len(keys) > _MAX_LISTED:
        yield by_rule("summary.differs", f"summary.json: {len(keys) - _MAX_LISTED} more values differ")


def _flatten(value: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with its key, such as `metrics.au_percent.per_epoch[0]`, and the length of each list."""
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


def _same(saved: Any, new: Any) -> bool:
    left, right = number(saved), number(new)  # None if not finite, or an integer too large for a float
    if left is not None and right is not None and float in (type(saved), type(new)):
        return same_sum(left, right)
    return bool(saved == new)
