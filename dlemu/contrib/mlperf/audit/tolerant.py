"""Reads files of unknown origin: a file or value that can't be read becomes a finding or None, never an exception."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import yaml

from dlemu.contrib.mlperf.rules.known import Finding, by_rule
from dlemu.extend import UserError
from dlemu.results.answer_files import read_untrusted

PRUNED = "PRUNED BY STAFF"  # content with which MLPerf Storage's reviewers replace a file that is too large to publish
SUM_TOLERANCE = 1e-6  # relative; a different order of summing changes far less, a different measurement more
LARGEST_BYTES = 2**31  # no result file is larger; a larger file is not read
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML's C loader is ten times as fast


def read_json(path: str, findings: list[Finding]) -> Any:
    """Return the content of a JSON file; if it can't be read, append a finding and return None."""
    return _parsed(path, "JSON", json.loads, findings)


def read_yaml(path: str, findings: list[Finding]) -> Any:
    """Return the content of a YAML file; if it can't be read, append a finding and return None."""
    return _parsed(path, "YAML", partial(yaml.load, Loader=YAML_LOADER), findings)


def _parsed(path: str, language: str, parse: Callable[[str], Any], findings: list[Finding]) -> Any:
    content = read_text(path, findings)
    try:
        return None if content is None else parse(content)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        findings.append(_broken(path, language, error))
        return None


def read_text(path: str, findings: list[Finding]) -> str | None:
    """Return a file's text; if it can't be read, or reviewers removed it, append a finding and return None."""
    try:
        content = read_untrusted(path, LARGEST_BYTES).decode()
    except (UserError, ValueError) as error:
        findings.append(_broken(path, "text", error))
        return None
    if content[: len(PRUNED) + 8].strip() != PRUNED:  # up to 8 blanks or line ends may surround the mark
        return content
    findings.append(by_rule("file.pruned", f"{os.path.basename(path)}: {PRUNED}"))
    return None


def _broken(path: str, language: str, error: Exception) -> Finding:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    name = os.path.basename(path)
    return by_rule("file.broken", f"{name}: {reason}", f"a whole {language} file", "copy it from the run again")


def entries_of(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sorted names of a folder's files, and of its subfolders; both empty if it can't be listed."""
    try:
        with os.scandir(path) as entries:
            listed = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError:
        return (), ()
    files = tuple(name for name, is_folder in listed if not is_folder)
    return files, tuple(name for name, is_folder in listed if is_folder)


def folders_in(folder: str) -> list[str]:
    """Return the sorted names of a folder's subfolders, except hidden ones."""
    return [name for name in entries_of(folder)[1] if not name.startswith(".")]


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def value_at(content: object, dotted: str) -> Any:
    """Return the value at a dotted key: 1 at `a.b` in {a: {b: 1}}; None without one."""
    for key in dotted.split("."):
        content = mapping(content).get(key)
    return content


def nested(content: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) for every value in nested mappings and lists: {a: {b: [1, 2]}} -> (b, 1), (b, 2)."""
    if isinstance(content, Mapping):
        for name, item in content.items():
            yield from nested(item, name)
    elif isinstance(content, list):
        for item in content:
            yield from nested(item, key)
    else:
        yield key, content


def number(value: object) -> float | None:
    """Return the value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def integer(value: object, minimum: int = 1) -> int | None:
    """Return the value as int if it is a whole number of at least `minimum`, else None."""
    real = number(value)
    if real is None or real != int(real) or real < minimum:
        return None
    return value if isinstance(value, int) else int(real)  # a float would round an int above 2**53


def numbers(value: object) -> list[float] | None:
    """Return the value if it is a non-empty list of finite numbers, else None."""
    return all_known(map(number, value)) if isinstance(value, list) else None


def all_known(values: Iterable[float | None]) -> list[float] | None:
    """Return the values as a list; None if there are none, or if any of them is None."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return known if known and len(known) == len(listed) else None


same_sum = partial(math.isclose, rel_tol=SUM_TOLERANCE, abs_tol=1e-9)  # equal, apart from the order of summing


def text(value: object) -> str | None:
    """Return the value if it is a non-empty string, else None."""
    return value if isinstance(value, str) and value else None


def moment(value: object) -> datetime | None:
    """Return a time stamp such as `2026-07-12T18:00:00.5` as local time, even with mlpstorage's Z; else None."""
    try:
        return datetime.fromisoformat(value).replace(tzinfo=None) if isinstance(value, str) else None
    except ValueError:
        return None


def stamp_us(value: object) -> int | None:
    """Return a time stamp in microseconds of local time since 1970; None for any other value."""
    local_time = moment(value)
    return None if local_time is None else (local_time - datetime(1970, 1, 1)) // timedelta(microseconds=1)
