"""Reads files of unknown origin: what can't be read becomes a finding, never an exception."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import yaml

from dlemu.contrib.mlperf.rules.known import Finding, by_rule
from dlemu.extend import UserError
from dlemu.results.answer_files import read_untrusted

PRUNED = b"PRUNED BY STAFF"
"""Content with which MLPerf Storage's reviewers replace a file that is too large to publish."""
SUM_TOLERANCE = 1e-6
"""Relative: a different order of summing changes far less, a different measurement more."""
LARGEST_BYTES = 2**31
"""A larger file is not read: no result file is as large."""
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's C loader is ten times as fast."""


def read_json(path: str, findings: list[Finding]) -> Any:
    """Return the content of a JSON file, or None and append a finding."""
    text = read_text(path, findings)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        findings.append(_broken(path, "JSON", error))
        return None


def read_yaml(path: str, findings: list[Finding]) -> Any:
    """Return the content of a YAML file, or None and append a finding."""
    text = read_text(path, findings)
    if text is None:
        return None
    try:
        return yaml.load(text, Loader=YAML_LOADER)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        findings.append(_broken(path, "YAML", error))
        return None


def read_text(path: str, findings: list[Finding]) -> str | None:
    """Return a file's text; None and append a finding where it can't be read, or reviewers removed its content."""
    try:
        content = read_untrusted(path, LARGEST_BYTES).decode()
        if is_pruned(content):
            findings.append(_pruned(path))
            return None
        return content
    except (UserError, ValueError) as error:
        findings.append(_broken(path, "text", error))
        return None


def is_pruned(content: str) -> bool:
    """Return whether a file's content is only the reviewers' note that they removed it."""
    return content[: len(PRUNED) + 8].strip() == PRUNED.decode()


def _pruned(path: str) -> Finding:
    return by_rule("file.pruned", f"{os.path.basename(path)}: {PRUNED.decode()}")


def _broken(path: str, kind: str, error: Exception) -> Finding:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    name = os.path.basename(path)
    return by_rule("file.broken", f"{name}: {reason}", f"a whole {kind} file", "copy it from the run again")


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def number(value: object) -> float | None:
    """Return the value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def count(value: object, least: int = 1) -> int | None:
    """Return the value as int if it is a whole number of at least `least`, else None."""
    whole = number(value)
    return int(whole) if whole is not None and whole == int(whole) and whole >= least else None


def numbers(value: object) -> list[float] | None:
    """Return the value if it is a non-empty list of finite numbers, else None."""
    if not isinstance(value, list) or not value:
        return None
    items = [number(item) for item in value]
    kept = [item for item in items if item is not None]
    return kept if len(kept) == len(items) else None


def same_sum(left: float, right: float) -> bool:
    """Return whether two sums are of the same numbers."""
    return math.isclose(left, right, rel_tol=SUM_TOLERANCE, abs_tol=1e-9)


def text(value: object) -> str | None:
    """Return the value if it is a non-empty string, else None."""
    return value if isinstance(value, str) and value else None


def stamp_us(value: object) -> int | None:
    """Return one of DLIO's time stamps in microseconds since 1970, local time; None for any other value."""
    if not isinstance(value, str):
        return None
    try:
        naive = datetime.fromisoformat(value).replace(tzinfo=None)
    except ValueError:
        return None
    return (naive - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def moment(stamp: object) -> datetime | None:
    """Return a time stamp of DLIO or mlpstorage as a datetime, in the local time of its clock; None if it is none."""
    microseconds = stamp_us(stamp.removesuffix("Z") if isinstance(stamp, str) else stamp)
    return None if microseconds is None else datetime(1970, 1, 1) + timedelta(microseconds=microseconds)
