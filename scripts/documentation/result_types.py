"""The schemas of results as Markdown: a list a type, from the types and their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from typing import Any, Literal, get_args, get_origin

import msgspec

from dlemu.checkpoints.io_rows import IO_COLUMNS
from dlemu.config.meanings import meanings
from dlemu.jobs.checkpoint.summary import CheckpointSummary
from dlemu.jobs.training.summary import Summary
from dlemu.results.schemas import described, types_in

BEGIN, END = "<!-- made by scripts/docs from dlemu/jobs/training/summary.py -->", "<!-- end of what is made -->"
CHECKPOINT_BEGIN = "<!-- made by scripts/docs from dlemu/jobs/checkpoint/summary.py -->"
GUIDES = {
    "size": "sizing.md",
    "sweep": "sizing.md",
    "compare": "sizing.md",
    "predict": "prediction.md",
    "checkpoint-prediction": "prediction.md",
    "probe": "probe.md",
    "pack": "../dlemu/contrib/pack/docs/packing.md",
    "together": "together.md",
    "record": "../dlemu/contrib/record/docs/record.md",
    "kvcache": "../dlemu/contrib/kvcache/docs/kvcache.md",
}
"""Answer, as `dlemu schema` calls it -> the page that says what it is for."""
_HEAD = """# Answers: every key of size.json, sweep.json, ...

Made by `scripts/docs` from the types: the files that searches, sweeps, comparisons, predictions, probes and the like
leave in their folders, and that `--json` prints. Results of training are in [results.md](results.md), of checkpoints in
[checkpoints.md](checkpoints.md). A `?` marks what may be null, `[]` a list; `dlemu schema COMMAND` has all types.
"""
Titles = dict[type[Any], str]
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null", Any: "anything"}


def tables() -> str:
    """Return the tables of Summary and of every type that it holds, in the order in which they are met."""
    return "\n".join(_table(kind, {one: one.__name__ for one in types_in(Summary)}) for kind in types_in(Summary))


def checkpoint_tables() -> str:
    """Return the same of CheckpointSummary, without the types that are in `tables`, and of the rows' columns."""
    known = set(types_in(Summary))
    types = "\n".join(_table(kind) for kind in types_in(CheckpointSummary) if kind not in known)
    for kind in known:
        types = types.replace(f"(#{kind.__name__.lower()})", f"(results.md#{kind.__name__.lower()})")
    columns = "\n".join(f"- `{name}`: {meaning}" for name, meaning in IO_COLUMNS.items())
    return f"{types}\n### checkpoints.parquet\n\n{columns}\n"


def answers_page() -> str:
    """Return a section for each answer; a type is described where it is met first."""
    known = set(types_in(Summary))
    places = {kind: f"results.md#{_anchor(kind.__name__)}" for kind in known}
    titles, parts = {kind: kind.__name__ for kind in known}, list[str]()
    for command in GUIDES:
        name, root = _title(command), described()[command].load().answer_type
        kinds = [kind for kind in types_in(root) if kind not in places]
        for kind in kinds:
            twice = kind.__name__ in titles.values()
            titles[kind] = f"{kind.__name__} of {name.split()[-1]}" if twice else kind.__name__
            places[kind] = f"#{_anchor(titles[kind])}"
        parts += [f"## {name}\n", *(_table(kind, titles, places) for kind in kinds)]
    named = [(_title(command), guide) for command, guide in GUIDES.items()]
    index = "\n".join(f"- [{name}](#{_anchor(name)}): [{guide}]({guide})" for name, guide in named)
    return "\n".join([_HEAD, f"{index}\n", *parts])


def _title(command: str) -> str:
    """Return an answer's heading: its file, and of a file that several commands write, whose it is."""
    kind = described()[command]
    return f"{kind.answer} of dlemu {command}" if kind.is_job else kind.answer


def _anchor(heading: str) -> str:
    return heading.lower().replace(".", "").replace(" ", "-")


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def _keys(kind: type[Any]) -> dict[str, str]:
    """Return the names of a type's fields, and the keys that they have in the file."""
    if issubclass(kind, msgspec.Struct):
        return {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    return {field.name: field.name for field in dataclasses.fields(kind)}


def _table(kind: type[Any], titles: Titles | None = None, places: Titles | None = None) -> str:
    hints, texts, given = typing.get_type_hints(kind), meanings(kind), _arguments(kind)
    title = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ").replace("None", "null")
    plain, explained = list[str](), list[str]()
    if above := next((base for base in kind.__mro__[1:] if base in (titles or {})), None):
        title += f" It has the keys of {type_words(above, places or {})}, too."
    own = {name: key for name, key in _keys(kind).items() if not above or name not in _keys(above)}
    for name, key in own.items():
        meaning = " ".join(texts.get(name, "").split()).replace("None", "null")
        words = _key(key, given.get(hints[name], hints[name]), places or {}, meaning)
        if meaning:
            explained.append(f"- {words}: {meaning}")
        else:
            plain.append(words)
    lines = [*([f"- {', '.join(plain)}"] if plain else []), *explained]
    return "\n".join([f"### {(titles or {}).get(kind, kind.__name__)}", "", title, "", *lines, ""])


def _key(key: str, hint: Any, places: Titles, meaning: str) -> str:
    """Return a key with `?` where it may be null, `[]` where it is a list, and its type if that says more."""
    words = type_words(hint, places)
    if is_told(words, meaning):
        return f"`{key}{'?' * words.endswith(' null')}`"
    plain, suffix = words.rstrip("[]?"), words[len(words.rstrip("[]?")) :]
    return f"`{key}{suffix}`" if plain in _PLAIN.values() else f"`{key}` ({words})"


def is_told(words: str, meaning: str) -> bool:
    """Say whether a type lists values, and the meaning names them all."""
    return words.startswith("`") and all(value in meaning for value in re.findall("`[^`]*`", words))


def _arguments(kind: type[Any]) -> dict[Any, Any]:
    """Return what a class puts for the type variables of a generic one above it."""
    bases = [base for base in getattr(kind, "__orig_bases__", ()) if dataclasses.is_dataclass(get_origin(base))]
    return {
        name: given
        for base in bases
        for name, given in zip(get_origin(base).__parameters__, get_args(base), strict=True)
    }


def type_words(hint: Any, places: Titles) -> str:
    """Say in words what a type holds."""
    if hint in _PLAIN or (isinstance(hint, type) and issubclass(hint, str)):  # an enumeration of codes
        return _PLAIN.get(hint, "string")
    if _is_table(hint):
        return f"[{hint.__name__}]({places.get(hint, f'#{_anchor(hint.__name__)}')})"
    if isinstance(hint, typing.TypeVar):
        return "text"
    origin, inner = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(origin):
        return f"{type_words(origin, places)} by {type_words(inner[0], places)}"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (typing.Union, types.UnionType):
        words = " or ".join(type_words(part, places) for part in inner if part is not type(None))
        if type(None) not in inner:
            return words
        return f"{words} or null" if ", " in words or " or " in words else f"{words}?"
    if origin is tuple:
        return f"{type_words(inner[0], places)}[]"
    if origin is dict:
        return f"{type_words(inner[1], places)} by {type_words(inner[0], places)}"
    return str(hint)
