"""Settings as trees of frozen dataclasses: built from plain mappings (parsed YAML or JSON), all problems at once.

Ranges and units of numbers are declared at their fields: `Annotated[int, at_least(1), Unit("samples")] = 4`. msgspec
checks each value; this module walks the tree, so that every problem is named with its path, and a key by the nearest.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from datagen.errors import UserError

T = TypeVar("T")
_FAILED: Any = object()

MAX_COUNT, MAX_BYTES = 10**9, 1 << 60
"""Larger than any run needs, yet small enough that sums of nanoseconds and bytes fit in 64 bits."""
MAX_PLANNED = 10**12  # the same for products of settings, such as the steps of all epochs


class Unit(str):
    """Unit of a setting's number, unless it counts what its description names."""


BYTES, SECONDS = Unit("bytes"), Unit("seconds")
MORE_THAN_0 = Meta(gt=0)
ALL_OR_SOME = Meta(ge=-1, le=MAX_PLANNED)
"""A count, of which -1 means all, or none, as its description says, and 0 nothing."""


def at_least(minimum: float, maximum: float = MAX_COUNT) -> Meta:
    """Return the range of a count or an amount."""
    return Meta(ge=minimum, le=maximum)


def build(cls: type[T], mapping: Mapping[str, object], where: str = "") -> T:
    """Build a dataclass from a mapping whose keys are its field names; `where` is the section's name for messages.

    Fields may be whatever msgspec converts, dataclasses, and dicts and tuples of these; an int may be given as 1.0. A
    dataclass with a classmethod `from_value(value, where)` is built by that instead. Raises UserError: listing every
    unknown key (with the most similar known one), missing key and value of a wrong type or out of range.
    """
    builder = _Builder(cls, where)
    result = builder.value(cls, mapping, where)
    if builder.problems:
        raise UserError(joined_problems(builder.problems))
    return cast(T, result)


def problems(value: Any, where: str = "") -> Iterator[str]:
    """Yield a message for each wrong value in a tree of dataclasses; `where` is the root's key.

    A dataclass may have a method `problems(where)` that checks combinations of its values.
    """
    builder = _Builder(type(value), where)
    builder.section(type(value), vars(value), where)
    yield from builder.problems
    yield from _combinations(value, where)


def _combinations(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _combinations(item, _join(where, key))
    elif is_dataclass(value):
        for field in fields(value):
            yield from _combinations(getattr(value, field.name), _join(where, field.name))
        if hasattr(value, "problems"):
            yield from value.problems(where)


def joined_problems(problems: list[str]) -> str:
    """Join problems into one message."""
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems:" + "".join(f"\n  - {problem}" for problem in problems)


class _Builder:
    """Builds one tree and collects problems; it knows the root, to suggest the right section for a misplaced key."""

    def __init__(self, root: Any, where: str) -> None:
        self.problems: list[str] = []
        self._root = root
        self._where = where

    def section(self, cls: Any, given: Mapping[str, object], where: str) -> Any:
        hints = _hints(cls)
        for key in given:
            if key not in hints:
                self.problems.append(self._unknown(cls, str(key), where))
        made = {key: self.value(hint, given[key], _join(where, key)) for key, hint in hints.items() if key in given}
        for field in fields(cls):
            if field.name in hints.keys() - made.keys() and field.default is field.default_factory is MISSING:
                self.problems.append(f"{_join(where, field.name)} is missing")
                made[field.name] = _FAILED
        return _FAILED if any(part is _FAILED for part in made.values()) else cls(**made)

    def value(self, hint: Any, value: Any, where: str) -> Any:
        """Return a value as its type hint wants it, _FAILED with a problem noted where it can't be that."""
        if hasattr(hint, "from_value"):
            try:
                return hint.from_value(value, where)
            except UserError as error:
                self.problems.append(str(error))
                return _FAILED
        bare = hint.__origin__ if get_origin(hint) is Annotated else hint
        origin = get_origin(bare)
        if is_dataclass(hint) and isinstance(hint, type):
            given = vars(value) if isinstance(value, hint) else {} if value is None else value
            if isinstance(given, Mapping):
                return self.section(hint, given, where)
        elif origin is dict and isinstance(value, Mapping | None):
            items = {str(key): (item, _join(where, str(key))) for key, item in (value or {}).items()}
            return self._all({key: self.value(get_args(bare)[1], *item) for key, item in items.items()})
        elif origin is tuple and isinstance(value, list | tuple):
            made = {at: self.value(get_args(bare)[0], item, f"{where}[{at}]") for at, item in enumerate(value)}
            return made if self._all(made) is _FAILED else tuple(made.values())
        return self._converted(hint, value, where)

    def _all(self, made: dict[Any, Any]) -> Any:
        return _FAILED if any(item is _FAILED for item in made.values()) else made

    def _converted(self, hint: Any, value: Any, where: str) -> Any:
        try:
            made = _convert(hint, value)
            if made == 0 and ALL_OR_SOME in getattr(hint, "__metadata__", ()):
                wanted = "1 or more, or -1"
            elif isinstance(made, float) and not math.isfinite(made):
                wanted = "a finite number"
            else:
                return made
        except msgspec.ValidationError as error:
            wanted = re.sub(r"^Expected |`|, got .*| - at .*", "", str(error))
        if get_origin(hint) is Literal:
            options = [str(option) for option in get_args(hint)]
            near = difflib.get_close_matches(str(value), options, 1)
            wanted = f"one of {', '.join(options)}" + (f" (did you mean {near[0]}?)" if near else "")
        seen = "empty" if value is None else repr(value)
        self.problems.append(f"{where or 'the settings'} is {seen}: wanted {wanted}")
        return _FAILED

    def _unknown(self, cls: Any, key: str, where: str) -> str:
        """Return the message for an unknown key: the section it belongs to, or the most similar keys."""
        full = _join(where, key)
        elsewhere: dict[str, list[str]] = {}
        for path in _paths(self._root, self._where):
            name = path.rpartition(".")[2]
            if not where or name not in _OF_ITS_SECTION:
                elsewhere.setdefault(name, []).append(path)
        if full in (meant := getattr(self._root, "SYNONYMS", {})):
            return f"unknown key {full}: did you mean {meant[full]}?"
        own = {name: [_join(where, name)] for name in _hints(cls)}
        for known, cutoff in ((own, 0.74), (elsewhere, 0.8)):
            if key in known:
                return f"unknown key {full}: it belongs at {' or '.join(known[key])}"
            near = difflib.get_close_matches(key, known, 1, 0.9)  # a slip of a letter, before words in common
            near = near or [name for name in known if len(key) > 4 and {*key.split("_")} <= {*name.split("_")}]
            if not 1 <= len(near) <= 3:
                near = difflib.get_close_matches(key, known, 1, cutoff)
            if near:
                return f"unknown key {full}: did you mean {' or '.join(path for name in near for path in known[name])}?"
        return f"unknown key {full}: {where or 'the top level'} has {', '.join(_hints(cls))}"


_OF_ITS_SECTION = (
    *("compression", "compression_level", "content", "enabled", "folder", "format", "mode", "type", "verify"),
)
"""Words that mean another thing in each section, so that a key of another one is not what the user meant."""


def _convert(hint: Any, value: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        if isinstance(value, float) and value.is_integer():  # YAML and hydra read 1e6 as a float
            return msgspec.convert(int(value), hint)
        raise


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return the type of each field that is given when a dataclass is made, with its range."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def _paths(cls: Any, where: str) -> list[str]:
    """Return the dotted names of all keys in `cls`, including sections."""
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
