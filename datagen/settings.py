"""Settings as trees of frozen dataclasses: built from plain mappings (parsed YAML or JSON), all problems at once.

Ranges and units of numbers are declared at their fields: `Annotated[int, at_least(1), Unit("samples")] = 4`.
"""

from __future__ import annotations

import difflib
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from datagen.errors import UserError

T = TypeVar("T")
_FAILED: Any = object()


def build(cls: type[T], mapping: Mapping[str, object], where: str = "") -> T:
    """Build a dataclass from a mapping whose keys are its field names; `where` is the section's name for messages.

    Supports nested dataclasses, Literal, tuple[X, ...], dict[str, X], unions, bool, int (also given as 1.0), float
    (also given as an int) and str. A dataclass with a classmethod `from_value(value, where)` is built by that instead.
    Raises UserError: listing every unknown key (with the most similar known one), missing key and value of a wrong
    type.
    """
    builder = _Builder(cls, where)
    result = builder.section(cls, mapping, where)
    if builder.problems:
        raise UserError(joined_problems(builder.problems))
    return cast(T, result)


def joined_problems(problems: list[str]) -> str:
    """Join problems into one message."""
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems:" + "".join(f"\n  - {problem}" for problem in problems)


class _Builder:
    """Builds one tree and collects problems; it knows the root, to suggest the right section for a misplaced key."""

    def __init__(self, root: type[object], where: str) -> None:
        self.problems: list[str] = []
        self._root = root
        self._where = where

    def section(self, cls: type[Any], value: object, where: str) -> Any:
        if value is None:  # an empty section in YAML
            value = {}
        if not isinstance(value, Mapping):
            return self._wrong(where, value, "a mapping of " + ", ".join(_keys(cls)))
        hints = get_type_hints(cls)
        keys = _keys(cls)
        for key in value:
            if key not in keys:
                self.problems.append(self._unknown(cls, str(key), where))
        made = {key: self.value(hints[key], value[key], _join(where, key)) for key in keys if key in value}
        for field in fields(cls):
            required = field.default is MISSING and field.default_factory is MISSING
            if field.init and field.name not in value and required:
                wanted = _describe(hints[field.name])
                self.problems.append(f"{_join(where, field.name)} is missing: wanted {wanted}")
                made[field.name] = _FAILED
        return _FAILED if any(part is _FAILED for part in made.values()) else cls(**made)

    def value(self, hint: Any, value: object, where: str) -> Any:
        if hint is object or hint is Any:
            return value
        if isinstance(hint, type) and hasattr(hint, "from_value"):
            return self._from_value(hint.from_value, value, where)
        if is_dataclass(hint) and isinstance(hint, type):
            return self.section(hint, value, where)
        origin = get_origin(hint)
        if origin is Literal:
            return self._literal(get_args(hint), value, where)
        if origin in (Union, types.UnionType):
            return self._union(hint, value, where)
        if origin is tuple:
            return self._tuple(hint, value, where)
        if origin is dict:
            return self._dict(hint, value, where)
        made = _scalar(hint, value)
        return self._wrong(where, value, _describe(hint)) if made is _FAILED else made

    def _from_value(self, make: Callable[[object, str], Any], value: object, where: str) -> Any:
        try:
            return make(value, where)
        except UserError as error:
            self.problems.append(str(error))
            return _FAILED

    def _literal(self, allowed: tuple[object, ...], value: object, where: str) -> Any:
        for option in allowed:
            if option == value and type(option) is type(value):
                return option
        near = difflib.get_close_matches(str(value), [str(option) for option in allowed], 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return self._wrong(where, value, _describe_literal(allowed) + hint)

    def _union(self, hint: Any, value: object, where: str) -> Any:
        for option in get_args(hint):
            trial = _Builder(self._root, self._where)
            made = trial.value(option, value, where)
            if made is not _FAILED and not trial.problems:
                return made
        return self._wrong(where, value, _describe(hint))

    def _tuple(self, hint: Any, value: object, where: str) -> Any:
        if not isinstance(value, list | tuple):
            return self._wrong(where, value, _describe(hint))
        kind = get_args(hint)[0]
        made = tuple(self.value(kind, item, f"{where}[{i}]") for i, item in enumerate(value))
        return _FAILED if any(item is _FAILED for item in made) else made

    def _dict(self, hint: Any, value: object, where: str) -> Any:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            return self._wrong(where, value, _describe(hint))
        kind = get_args(hint)[1]
        made = {str(key): self.value(kind, item, _join(where, str(key))) for key, item in value.items()}
        return _FAILED if any(item is _FAILED for item in made.values()) else made

    def _wrong(self, where: str, value: object, wanted: str) -> Any:
        actual = "empty" if value is None else f"{value!r} ({type(value).__name__})"
        self.problems.append(f"{where or 'the settings'} is {actual}: wanted {wanted}")
        return _FAILED

    def _unknown(self, cls: type[Any], key: str, where: str) -> str:
        """Return the message for an unknown key: the section it belongs to, or the most similar keys."""
        full = _join(where, key)
        elsewhere: dict[str, list[str]] = {}
        for path in _paths(self._root, self._where):
            name = path.rpartition(".")[2]
            if not where or name not in _OF_ITS_SECTION:
                elsewhere.setdefault(name, []).append(path)
        if full in (meant := getattr(self._root, "SYNONYMS", {})):
            return f"unknown key {full}: did you mean {meant[full]}?"
        own = {name: [_join(where, name)] for name in _keys(cls)}
        for known, cutoff in ((own, 0.74), (elsewhere, 0.8)):
            if key in known:
                return f"unknown key {full}: it belongs at {' or '.join(known[key])}"
            near = difflib.get_close_matches(key, known, 1, 0.9)  # a slip of a letter, before words in common
            near = near or [name for name in known if len(key) > 4 and {*key.split("_")} <= {*name.split("_")}]
            if not 1 <= len(near) <= 3:
                near = difflib.get_close_matches(key, known, 1, cutoff)
            if near:
                return f"unknown key {full}: did you mean {' or '.join(path for name in near for path in known[name])}?"
        return f"unknown key {full}: {where or 'the top level'} has {', '.join(_keys(cls))}"


_OF_ITS_SECTION = (
    "compression",
    "compression_level",
    "content",
    "enabled",
    "folder",
    "format",
    "mode",
    "type",
    "verify",
)
"""Words that mean another thing in each section, so that a key of another one is not what the user meant."""


def _keys(cls: type[Any]) -> list[str]:
    return [field.name for field in fields(cls) if field.init]


def _paths(cls: type[Any], where: str) -> list[str]:
    """Return the dotted names of all keys in `cls`, including sections."""
    hints = get_type_hints(cls)
    paths = []
    for key in _keys(cls):
        path = _join(where, key)
        paths.append(path)
        if is_dataclass(hints[key]) and not hasattr(hints[key], "from_value") and getattr(hints[key], "BY_USERS", True):
            paths += _paths(hints[key], path)
    return paths


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _scalar(hint: Any, value: object) -> Any:
    if hint is type(None):
        return None if value is None else _FAILED
    if isinstance(value, bool):  # bool is an int in Python, but not for users
        return value if hint is bool else _FAILED
    if hint is str:
        return value if isinstance(value, str) else _FAILED
    if hint is int and isinstance(value, int):
        return value
    try:
        number = float(value) if hint in (int, float) and isinstance(value, int | float) else math.nan
    except OverflowError:  # a whole number of more than 308 digits
        return _FAILED
    if hint is int:
        return int(number) if number.is_integer() else _FAILED
    return number if math.isfinite(number) else _FAILED


_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "nothing"}


def _describe(hint: Any) -> str:
    """Describe in words the values that a type hint accepts."""
    origin = get_origin(hint)
    if origin is Literal:
        return _describe_literal(get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_describe(option) for option in get_args(hint)))
    if origin is tuple:
        return f"a list, each item {_describe(get_args(hint)[0])}"
    if origin is dict:
        return "a mapping"
    if is_dataclass(hint) and isinstance(hint, type):
        return f"a mapping of {', '.join(_keys(hint))}"
    return _WORDS.get(hint, "a value")


def _describe_literal(allowed: tuple[object, ...]) -> str:
    return "one of " + ", ".join(str(option) for option in allowed)


MAX_COUNT, MAX_BYTES = 10**9, 1 << 60
"""Larger than any run needs, yet small enough that sums of nanoseconds and bytes fit in 64 bits."""
MAX_PLANNED = 10**12  # the same for products of settings, such as the steps of all epochs


class Unit(str):
    """Unit of a setting's number, unless it counts what its description names."""


BYTES, SECONDS = Unit("bytes"), Unit("seconds")


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may have, both ends included."""

    minimum: float
    maximum: float
    words: str  # the range in words, as in "wanted 0 to 19"
    minus_one: str = ""  # what -1 means, if it is allowed too: "-1 for every step"

    def wanted(self, number: float) -> str:
        """Return what is allowed instead of a number out of range; empty for a number in range."""
        if self.minimum <= number <= self.maximum or (self.minus_one and number == -1):
            return ""
        if self.minus_one and number > self.maximum:
            return f"at most {self.maximum}, or {self.minus_one}"
        return self.words


def at_least(minimum: float, maximum: float = MAX_COUNT) -> Range:
    """Return the range of a count or an amount."""
    return Range(minimum, maximum, f"{minimum} or more, and at most {maximum}")


def positive_or(minus_one: str) -> Range:
    """Return the range of a count that may also be -1; `minus_one` says what -1 means."""
    return Range(1, MAX_PLANNED, f"1 or more, or {minus_one}", minus_one)


MORE_THAN_0 = Range(sys.float_info.min, math.inf, "more than 0")


@cache
def declared(section: Any) -> dict[str, tuple[Any, ...]]:
    """Return the metadata of each `Annotated` field of a dataclass, by field name."""
    hints = get_type_hints(section, include_extras=True)
    names = [field.name for field in fields(section)]
    return {name: hints[name].__metadata__ if get_origin(hints[name]) is Annotated else () for name in names}


@cache
def _ranges(section: Any) -> list[tuple[str, Range]]:
    return [(name, part) for name, parts in declared(section).items() for part in parts if isinstance(part, Range)]


def out_of_range(section: Any, where: str) -> Iterator[str]:
    """Yield a message for each number of a section that is out of range; `where` is the key of the section."""
    for name, allowed in _ranges(section.__class__):
        number = getattr(section, name)
        if wanted := allowed.wanted(number):
            yield f"{_join(where, name)} is {number}: wanted {wanted}"


def problems(value: Any, where: str = "") -> Iterator[str]:
    """Yield a message for each wrong value in a tree of dataclasses and mappings of them; `where` is the root's key.

    A dataclass may have a method `problems(where)` that checks combinations of its values.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from problems(item, _join(where, key))
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from problems(item, f"{where}[{number}]")
    elif is_dataclass(value):
        yield from out_of_range(value, where)
        for field in fields(value):
            yield from problems(getattr(value, field.name), _join(where, field.name))
        if hasattr(value, "problems"):
            yield from value.problems(where)
