"""docs/answers.md: the keys of every result, from the types; a type nested in another has one line."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

from dlemu.checkpoints.io_rows import IO_COLUMNS
from dlemu.config.dump import first_sentence, meanings
from dlemu.jobs.training.steplog import STEP_COLUMNS
from dlemu.jobs.training.summary import Metrics
from dlemu.metrics.catalogue import Metric
from dlemu.results.kinds import kinds
from dlemu.results.schemas import kinds_by_command, types_in

GUIDES = {
    "train": "results.md",
    "checkpoint": "checkpoints.md",
    "size": "sizing.md",
    "sweep": "compare.md",
    "compare": "compare.md",
    "together": "compare.md",
    "predict": "prediction.md",
    "checkpoint-prediction": "prediction.md",
    "needs": "prediction.md",
    "probe": "probe.md",
    "pack": "../dlemu/contrib/pack/docs/packing.md",
    "record": "../dlemu/contrib/record/docs/record.md",
    "kvcache": "../dlemu/contrib/kvcache/docs/kvcache.md",
}
"""Name of a result in `dlemu schema` -> the page about it."""
_DETAILED = {Metrics}
"""Nested types whose keys have one line each, like those of a result."""
_HEAD = """# Keys of results

Made by `scripts/docs` from the types: what a command's JSON file holds, which `--json` prints. Of a type inside another
one line has the keys; `dlemu schema COMMAND` prints each with type and meaning. A `?` marks what may be null, `[]` a
list; a key that is explained under a result above is only named. In sweep.json and compare.json the
[metrics](#metrics-of-each-kind-of-job) of a run stand by name.
"""
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null", Any: "anything"}


def page() -> str:
    """Return a section for each result; a type is described where it first occurs."""
    titles, explained, parts = dict[type[Any], str](), set[str](), list[str]()
    for command, guide in GUIDES.items():
        name, root = _title(command), kinds_by_command()[command].load().answer_type
        new = [kind for kind in types_in(root) if kind not in titles]
        titles |= {kind: kind.__name__ for kind in new}
        detailed = [kind for kind in new if kind is root or issubclass(root, kind) or kind in _DETAILED]
        parts.append(f"## {name}\n\n{_doc(root)} [{guide.rpartition('/')[2]}]({guide})\n")
        parts += [_list(kind, titles, explained, is_root=kind is root) for kind in detailed]
        if nested := [_one_line(kind, titles) for kind in new if kind not in detailed]:
            parts.append("\n".join([*nested, ""]))
    tables = {"steps.parquet": STEP_COLUMNS, "checkpoints.parquet": IO_COLUMNS}
    return "\n".join([_HEAD, *parts, *(_columns(name, columns) for name, columns in tables.items()), *_metrics()])


def _columns(name: str, columns: dict[str, str]) -> str:
    lines = "\n".join(f"- `{column}`: {meaning}" for column, meaning in columns.items())
    return f"## {name}\n\nAll columns are 64-bit integers; a time is in ns on CLOCK_MONOTONIC of its host.\n\n{lines}\n"


def _metrics() -> Iterator[str]:
    """Yield, for each kind of job, a line with the metrics by which its runs are compared."""
    yield "## Metrics of each kind of job\n\nIn brackets: unit, and which of two values is better.\n"
    for kind in kinds():
        if kind.is_job:
            yield f"- Of {kind.noun}: {', '.join(map(_metric, kind.load_job().catalogue.compared))}."
    yield ""


def _metric(metric: Metric) -> str:
    better = "" if metric.better == "neither" else f", {metric.better}"
    return f"`{metric.name}` ({metric.unit}{better})"


def _title(command: str) -> str:
    """Return a result's heading: its file, and its command if several commands write such a file."""
    kind = kinds_by_command()[command]
    return f"{kind.answer} of dlemu {command}" if kind.is_job else kind.answer


def _doc(kind: type[Any]) -> str:
    return (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ").replace("None", "null")


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def _own_keys(kind: type[Any], described: dict[type[Any], str]) -> dict[str, str]:
    """Return the names of a type's fields and their keys in the file, without those of a base described before."""
    base = next((base for base in kind.__mro__[1:] if base in described), None)
    return {name: key for name, key in _keys(kind).items() if not base or name not in _keys(base)}


def _keys(kind: type[Any]) -> dict[str, str]:
    if issubclass(kind, msgspec.Struct):
        return {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    return {field.name: field.name for field in dataclasses.fields(kind)}


def _list(kind: type[Any], titles: dict[type[Any], str], explained: set[str], *, is_root: bool) -> str:
    """Return a line of keys without a meaning, or `explained` before; then one line for each other key."""
    texts = meanings(kind)
    plain, lines = list[str](), list[str]()
    for name, key in _keys_of(kind, titles).items():
        meaning = " ".join(texts.get(name, "").split()).replace("None", "null")
        line = f"- {key}: {meaning}"
        if meaning and line not in explained:
            lines.append(line)
        else:
            plain.append(key)
    explained.update(lines)
    head = [] if is_root else [f"`{kind.__name__}`: {_doc(kind)}", ""]
    return "\n".join([*head, *([f"- {', '.join(plain)}"] if plain else []), *lines, ""])


def _one_line(kind: type[Any], titles: dict[type[Any], str]) -> str:
    inherited = next((f", and those of `{base.__name__}`" for base in kind.__mro__[1:] if base in titles), "")
    keys = ", ".join(_keys_of(kind, titles).values())
    return f"- `{kind.__name__}`: {first_sentence(_doc(kind))}: {keys}{inherited}."


def _keys_of(kind: type[Any], titles: dict[type[Any], str]) -> dict[str, str]:
    """Return field -> its key, with `?` if it may be null, `[]` if it is a list, and the name of a type of ours."""
    hints, arguments = typing.get_type_hints(kind), _type_arguments(kind)
    own = _own_keys(kind, titles)
    return {name: _key(key, type_words(arguments.get(hints[name], hints[name]))) for name, key in own.items()}


def _key(key: str, words: str) -> str:
    suffix = words[len(words.rstrip("[]?")) :]
    type_names = re.findall(r"\b[A-Z]\w+", words)
    return f"`{key}{suffix}`" + (f" ({type_names[0]})" if type_names else "")


def is_in_meaning(words: str, meaning: str) -> bool:
    """Return whether a type, in words, is a list of values that the meaning names, too."""
    return words.startswith("`") and all(value in meaning for value in re.findall("`[^`]*`", words))


def _type_arguments(kind: type[Any]) -> dict[Any, Any]:
    """Return the type arguments that a class gives to its generic bases: type variable -> argument."""
    bases = [base for base in getattr(kind, "__orig_bases__", ()) if dataclasses.is_dataclass(get_origin(base))]
    return {
        variable: argument
        for base in bases
        for variable, argument in zip(get_origin(base).__parameters__, get_args(base), strict=True)
    }


def type_words(hint: Any) -> str:
    """Return a type in words."""
    if hint in _PLAIN or (isinstance(hint, type) and issubclass(hint, str)):  # an enumeration of codes
        return _PLAIN.get(hint, "string")
    if _is_table(hint):
        return str(hint.__name__)
    if isinstance(hint, typing.TypeVar):
        return "text"
    origin, inner = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(origin):
        return f"{type_words(origin)} by {type_words(inner[0])}"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (typing.Union, types.UnionType):
        words = " or ".join(type_words(part) for part in inner if part is not type(None))
        if type(None) not in inner:
            return words
        return f"{words} or null?" if ", " in words or " or " in words else f"{words}?"
    if origin is tuple:
        return f"{type_words(inner[0])}[]"
    if origin is dict:
        return f"{type_words(inner[1])} by {type_words(inner[0])}"
    return str(hint)
