"""Settings as trees of frozen dataclasses, built from plain mappings (parsed YAML or JSON), with all problems listed.

Fields declare ranges and units of numbers: `Annotated[int, at_least(1), Unit("samples")] = 4`. msgspec checks each
value. This module walks the tree, so that each problem names its path, and an unknown key the most similar known one.

A dataclass of settings may define these hooks:

- `from_value(value, where)`, a classmethod, builds it from any value, such as a number;
- `problems(where)`, a method, yields a message for each contradiction between its values;
- `BY_USERS = False` keeps its keys out of suggestions;
- `SYNONYMS`, in the root, maps keys of other tools to what messages suggest instead.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from datagen.errors import UserError

T = TypeVar("T")
MAX_COUNT, MAX_BYTES = 10**9, 1 << 60
"""Larger than any run needs, yet small enough that sums of nanoseconds and bytes fit in 64 bits."""
MAX_PLANNED = 10**12  # maximum of products of settings, such as the steps of all epochs
_AMBIGUOUS_KEYS = "compression", "compression_level", "content", "enabled", "folder", "format", "mode", "type", "verify"
"""Keys that several sections have, with different meanings: no other section is suggested for a misplaced one."""


class Unit(str):
    """Unit of a setting. A number without one is a count; the description of the setting says of what."""


BYTES, SECONDS = Unit("bytes"), Unit("seconds")
MORE_THAN_0 = Meta(gt=0)
ALL_OR_SOME = Meta(ge=-1, le=MAX_PLANNED)  # a count, or -1: all or none, as the setting's description says


def at_least(minimum: float, maximum: float = MAX_COUNT) -> Meta:
    return Meta(ge=minimum, le=maximum)


def build(cls: type[T], mapping: Mapping[str, object], where: str = "") -> T:
    """Build a dataclass from a mapping whose keys are its field names; `where` is the section's name for messages.

    Fields may be whatever msgspec converts, dataclasses, and dicts and tuples of these; 1.0 is accepted for an int.
    Raises UserError that lists all unknown keys, missing keys, and values of a wrong type or out of range.
    """
    builder = _Builder(cls, where)
    result = builder.value(cls, mapping, where)
    refuse(builder.messages)
    return cast(T, result)


def problems(value: Any, where: str = "") -> Iterator[str]:
    """Yield a message for each wrong value in a tree of dataclasses; `where` is the key of the root."""
    builder = _Builder(type(value), where)
    builder.value(type(value), value, where)
    yield from builder.messages


def refuse(problems: Iterable[str]) -> None:
    """Raise UserError that lists all problems, if there are any."""
    messages = list(problems)
    if len(messages) > 1:
        raise UserError(f"{len(messages)} problems:" + "".join(f"\n  - {message}" for message in messages))
    if messages:
        raise UserError(messages[0])


class _Builder:
    """Builds one tree, with a message for each problem. The root tells to which section a misplaced key belongs."""

    def __init__(self, root: Any, where: str) -> None:
        self.messages: list[str] = []
        self._root = root
        self._where = where

    def section(self, cls: Any, items: Mapping[str, object], where: str) -> Any:
        """Return an instance of a dataclass; None once the tree has a problem, because it will not be used then."""
        hints = _hints(cls)
        self.messages += [self._unknown_key(cls, str(key), where) for key in items if key not in hints]
        values = {key: self.value(hint, items[key], _join(where, key)) for key, hint in hints.items() if key in items}
        for field in fields(cls):
            is_required = field.init and field.default is MISSING and field.default_factory is MISSING
            if is_required and field.name not in values:
                self.messages.append(f"{_join(where, field.name)} is missing")
        return None if self.messages else cls(**values)

    def value(self, hint: Any, value: Any, where: str) -> Any:
        """Return a value converted to its type hint; if it is wrong, add a message and return None."""
        if hasattr(hint, "from_value"):
            try:
                return hint.from_value(value, where)
            except UserError as error:
                self.messages.append(str(error))
                return None
        bare_hint = hint.__origin__ if get_origin(hint) is Annotated else hint
        container = get_origin(bare_hint)
        if is_dataclass(hint) and isinstance(hint, type):
            if isinstance(value, hint):
                section = self.section(hint, vars(value), where)
                if hasattr(value, "problems"):
                    self.messages += value.problems(where)
                return section
            if isinstance(value, Mapping | None):
                return self.section(hint, value or {}, where)
        elif container is dict and isinstance(value, Mapping | None):
            item_hint = get_args(bare_hint)[1]
            items = {str(key): item for key, item in (value or {}).items()}
            return {key: self.value(item_hint, item, _join(where, key)) for key, item in items.items()}
        elif container is tuple and isinstance(value, list | tuple):
            item_hint = get_args(bare_hint)[0]
            return tuple(self.value(item_hint, item, f"{where}[{index}]") for index, item in enumerate(value))
        return self._scalar(hint, value, where)

    def _scalar(self, hint: Any, value: Any, where: str) -> Any:
        """Return a number, string or the like as `value` does; any other value here has a wrong type."""
        try:
            converted = _convert(hint, value)
        except msgspec.ValidationError as error:
            wanted = re.sub(r"^Expected |`|, got .*| - at .*", "", str(error))  # "Expected `int`, got `str`" -> "int"
        else:
            if converted == 0 and ALL_OR_SOME in getattr(hint, "__metadata__", ()):
                wanted = "1 or more, or -1"
            elif isinstance(converted, float) and not math.isfinite(converted):
                wanted = "a finite number"
            else:
                return converted
        if get_origin(hint) is Literal:
            options = [str(option) for option in get_args(hint)]
            near = difflib.get_close_matches(str(value), options, 1)
            wanted = f"one of {', '.join(options)}" + (f" (did you mean {near[0]}?)" if near else "")
        actual = "empty" if value is None else repr(value)
        self.messages.append(f"{where or 'the settings'} is {actual}: wanted {wanted}")
        return None

    def _unknown_key(self, cls: Any, key: str, where: str) -> str:
        """Return the message for an unknown key, which names the section it belongs to or the most similar keys."""
        path = _join(where, key)
        synonyms = getattr(self._root, "SYNONYMS", {})
        if path in synonyms:
            return f"unknown key {path}: did you mean {synonyms[path]}?"
        in_section = {name: [_join(where, name)] for name in _hints(cls)}  # paths by key
        anywhere: dict[str, list[str]] = {}
        for known_path in _paths(self._root, self._where):
            name = known_path.rpartition(".")[2]
            if not where or name not in _AMBIGUOUS_KEYS:
                anywhere.setdefault(name, []).append(known_path)
        for paths, min_similarity in ((in_section, 0.74), (anywhere, 0.8)):
            if key in paths:
                return f"unknown key {path}: it belongs at {' or '.join(paths[key])}"
            suggestions = [known for name in _similar(key, paths, min_similarity) for known in paths[name]]
            if suggestions:
                return f"unknown key {path}: did you mean {' or '.join(suggestions)}?"
        return f"unknown key {path}: {where or 'the top level'} has {', '.join(_hints(cls))}"


def _similar(key: str, names: Iterable[str], min_similarity: float) -> list[str]:
    """Return names that a mistyped key may stand for: spelled almost alike, else with all its words, else similar."""
    similar = difflib.get_close_matches(key, names, 1, 0.9)
    if not similar and len(key) > 4:
        similar = [name for name in names if {*key.split("_")} <= {*name.split("_")}]  # num_eval -> num_files_eval
    return similar if 1 <= len(similar) <= 3 else difflib.get_close_matches(key, names, 1, min_similarity)


def _convert(hint: Any, value: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        if isinstance(value, float) and value.is_integer():  # YAML and hydra read 1e6 as a float
            return msgspec.convert(int(value), hint)
        raise


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return the type hint of each field that a dataclass is constructed with, including `Annotated` metadata."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def _paths(cls: Any, where: str) -> list[str]:
    """Return the paths of all keys of a dataclass and its sections."""
    paths = []
    for key, hint in _hints(cls).items():
        path = _join(where, key)
        paths.append(path)
        if is_dataclass(hint) and not hasattr(hint, "from_value") and getattr(hint, "BY_USERS", True):
            paths += _paths(hint, path)
    return paths


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


@cache
def declared(section: Any) -> dict[str, tuple[Any, ...]]:
    """Return the metadata of each `Annotated` field of a dataclass, by field name."""
    hints = _hints(section)
    return {name: hint.__metadata__ if get_origin(hint) is Annotated else () for name, hint in hints.items()}
