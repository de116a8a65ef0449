"""The schema of summary.json and facts.json as Markdown: a table a type, from the dataclasses and their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from dlemu.checkpoints.io_rows import IO_COLUMNS
from dlemu.results.checkpoint_summary import CheckpointSummary
from dlemu.results.summary import Summary

BEGIN, END = "<!-- made by scripts/docs from dlemu/results/summary.py -->", "<!-- end of what is made -->"
CHECKPOINT_BEGIN = "<!-- made by scripts/docs from dlemu/results/checkpoint_summary.py -->"
_PLAIN = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null"}


def tables() -> str:
    """Return the tables of Summary and of every type that it holds, in the order in which they are met."""
    return "\n".join(_table(kind) for kind in _reachable(Summary))


def checkpoint_tables() -> str:
    """Return the same of CheckpointSummary, without the types that are in `tables`, and of the rows' columns."""
    known = set(_reachable(Summary))
    types = "\n".join(_table(kind) for kind in _reachable(CheckpointSummary) if kind not in known)
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
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for part in get_args(hint):
        yield from _dataclasses(part)


def _table(kind: type[Any]) -> str:
    hints, meanings = typing.get_type_hints(kind), _docstrings(kind)
    title = inspect.getdoc(kind) or ""
    title = title.split("\n\n")[0].replace("\n", " ").replace("None", "null")
    lines = [f"### {kind.__name__}", "", title, "", "| key | type | meaning |"]
    lines.append("|---|---|---|")
    for field in dataclasses.fields(kind):
        meaning = " ".join(meanings.get(field.name, "").split()).replace("None", "null").replace("|", "\\|")
        lines.append(f"| `{field.name}` | {_words(hints[field.name])} | {meaning} |")
    return "\n".join(lines) + "\n"


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """Return the docstring after each field, those of base classes included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        if not dataclasses.is_dataclass(base):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, after in zip(definition.body, [*definition.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                match after:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found[statement.target.id] = text
    return found


def _words(hint: Any) -> str:
    if hint in _PLAIN:
        return _PLAIN[hint]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(part) for part in inner)
    if origin is tuple:
        return f"list of {_words(inner[0])}"
    if origin is dict:
        return f"mapping of {_words(inner[0])} to {_words(inner[1])}"
    return str(hint)
