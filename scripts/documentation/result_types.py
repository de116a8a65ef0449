"""The schema of summary.json and facts.json as Markdown: a table a type, from the dataclasses and their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from dlemu.checkpoints.io_rows import IO_COLUMNS
from dlemu.config.meanings import meanings
from dlemu.jobs.checkpoint.summary import CheckpointSummary
from dlemu.jobs.training.summary import Summary

BEGIN, END = "<!-- made by scripts/docs from dlemu/jobs/training/summary.py -->", "<!-- end of what is made -->"
CHECKPOINT_BEGIN = "<!-- made by scripts/docs from dlemu/jobs/checkpoint/summary.py -->"
_PLAIN = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null"}


def tables() -> str:
    """Return the tables of Summary and of every type that it holds, in the order in which they are met."""
    return "\n".join(_table(kind) for kind in _reachable(Summary))


def checkpoint_tables() -> str:
    """Return the same of CheckpointSummary, without the types that are in `tables`, and of the rows' columns."""
    known = set(_reachable(Summary))
    types = "\n".join(_table(kind) for kind in _reachable(CheckpointSummary) if kind not in known)
    for kind in known:
        types = types.replace(f"(#{kind.__name__.lower()})", f"(results.md#{kind.__name__.lower()})")
    rows = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in IO_COLUMNS.items())
    return f"{types}\n### checkpoints.parquet\n\n| column | meaning |\n|---|---|\n{rows}\n"


def _reachable(root: type[Any]) -> Iterator[type[Any]]:
    waiting, known = [root], {root}
    while waiting:
        kind = waiting.pop(0)
        yield kind
        for hint in typing.get_type_hints(kind).values():
            for inner in _dataclasses(hint):
                if inner not in known:
                    known.add(inner)
                    waiting.append(inner)


def _dataclasses(hint: Any) -> Iterator[type[Any]]:
    kind = get_origin(hint) or hint
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        yield kind
    for part in get_args(hint):
        yield from _dataclasses(part)


def _table(kind: type[Any]) -> str:
    hints, texts, given = typing.get_type_hints(kind), meanings(kind), _arguments(kind)
    title = inspect.getdoc(kind) or ""
    title = title.split("\n\n")[0].replace("\n", " ").replace("None", "null")
    lines = [f"### {kind.__name__}", "", title, "", "| key | type | meaning |"]
    lines.append("|---|---|---|")
    for field in dataclasses.fields(kind):
        meaning = " ".join(texts.get(field.name, "").split()).replace("None", "null").replace("|", "\\|")
        lines.append(f"| `{field.name}` | {type_words(given.get(hints[field.name], hints[field.name]))} | {meaning} |")
    return "\n".join(lines) + "\n"


def _arguments(kind: type[Any]) -> dict[Any, Any]:
    """Return what a class puts for the type variables of a generic one above it."""
    bases = [base for base in getattr(kind, "__orig_bases__", ()) if dataclasses.is_dataclass(get_origin(base))]
    return {
        name: given
        for base in bases
        for name, given in zip(get_origin(base).__parameters__, get_args(base), strict=True)
    }


def type_words(hint: Any) -> str:
    """Say in words what a type holds."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if isinstance(hint, typing.TypeVar):
        return "text"
    origin, inner = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(origin):
        return f"{type_words(origin)} by {type_words(inner[0])}"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_words(part) for part in inner)
    if origin is tuple:
        return f"list of {type_words(inner[0])}"
    if origin is dict:
        return f"mapping of {type_words(inner[0])} to {type_words(inner[1])}"
    return str(hint)
