"""Several values for a key, as in `ranks=1,2,4`: returns the runs of a sweep, one for each combination.

`parse_word` reads one override by Hydra's grammar, and texts with characters that the grammar does not allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from datagen.errors import UserError
from dlemu.config.literal import quoted
from dlemu.config.published import without_secrets

T = TypeVar("T")

DRIVES = "drives"
"""`drives=A,B` stands for `dataset.data_folder=A,B`."""
DATA_FOLDER = "dataset.data_folder"
_QUOTES = ("'", '"')


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    settings: dict[str, str]
    words: tuple[str, ...]


def points(words: Sequence[str]) -> list[Point]:
    """Return the runs, the last key that has several values changing fastest; raises UserError."""
    fixed, axes = [], []
    for word in words:
        parsed = _parsed(word)
        if parsed is None or not parsed.is_sweep_override():
            fixed.append(_renamed(word))
            continue
        key = _renamed(parsed.get_key_element())
        if without_secrets([word]) != [word]:
            raise UserError(f"{key} has several values, which may be credentials: wanted one value, since none is kept")
        axes.append([(key, str(value)) for value in parsed.sweep_string_iterator()])
    return [Point(dict(chosen), (*fixed, *(f"{key}={value}" for key, value in chosen))) for chosen in product(*axes)]


def _parsed(word: str) -> Override | None:
    try:
        return parse_word(word)
    except HydraException:
        return None


def _renamed(word: str) -> str:
    key, equals, value = word.partition("=")
    return f"{DATA_FOLDER}{equals}{value}" if key.lstrip("+") == DRIVES else word


def check_points(runs: Sequence[Point]) -> None:
    if len(runs) < 2:
        raise UserError(
            "a sweep needs several values for a key, as in ranks=1,2,4,8 or drives=/mnt/a,/mnt/b; `dlemu train` makes "
            "one run"
        )


def check_each(runs: Sequence[Point], check: Callable[[Point], T]) -> list[T]:
    """Return the result of `check` for each point; raises a single UserError with all of its errors."""
    checked: list[T] = []
    problems: dict[str, str] = {}
    for point in runs:
        try:
            checked.append(check(point))
        except UserError as error:
            problems.setdefault(str(error), named(point.settings))  # the same problem of several points is listed once
    if problems:
        raise UserError("\n".join(f"{name}: {error}" if name else error for error, name in problems.items()))
    return checked


def named(settings: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


_STRUCTURED = re.compile(r"""\s*(?:[\[{(\]})'"]|\w+\(|$)""")
"""The start of a list, a dictionary, a quotation or a call such as `range(1,9)`; or an empty value."""


def parse_word(text: str) -> Override:
    """Parse one `KEY=VALUE` by Hydra's grammar; raises HydraException.

    A text that the grammar refuses, such as /mnt/ä or /mnt/a(1), is read as if it were quoted, as is each of several,
    unless it may be an unfinished list, dictionary, call, quotation or reference.
    """
    parser = OverridesParser.create()
    try:
        return parser.parse_override(text)
    except HydraException:
        key, _, value = text.partition("=")
        parts = [value] if any(quote in value for quote in _QUOTES) else value.split(",")
        if "," in parts[0] or not all(map(_may_be_quoted, parts)):  # a comma beside quotes may separate
            raise
        return parser.parse_override(f"{key}={','.join(_quoted_if_needed(parser, part.strip()) for part in parts)}")


def _may_be_quoted(part: str) -> bool:
    return not ("${" in part or "\\" in part or _STRUCTURED.match(part))


def _quoted_if_needed(parser: OverridesParser, part: str) -> str:
    try:
        parser.parse_override(f"key={part}")
    except HydraException:
        return quoted(part)
    return part
