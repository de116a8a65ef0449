"""Hydra's grammar for one word of the command line, and what it has no characters for."""

from __future__ import annotations

import re

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from dlemu.config.literal import quoted

_QUOTES = ("'", '"')
_STRUCTURED = re.compile(r"""\s*(?:[\[{(\]})'"]|\w+\(|$)""")
"""The begin of a list, a dictionary, a quotation or a call, as in `range(1,9)`, or nothing at all."""


def parse_word(text: str) -> Override:
    """Return what hydra's grammar makes of one `KEY=VALUE`; raises HydraException.

    What it takes keeps its meaning. A text that it has no characters for, such as /mnt/ä or /mnt/a(1), is read as if
    it were quoted, and so is each of several (`/mnt/ä,/mnt/b`); what may be an unfinished list, dictionary, call,
    quotation or reference is not.
    """
    parser = OverridesParser.create()
    try:
        return parser.parse_override(text)
    except HydraException:
        key, _, value = text.partition("=")
        parts = [value] if any(quote in value for quote in _QUOTES) else value.split(",")
        if "," in parts[0] or not all(map(_may_be_quoted, parts)):
            raise
        return parser.parse_override(f"{key}={','.join(_as_taken(parser, part.strip()) for part in parts)}")


def _may_be_quoted(part: str) -> bool:
    return not ("${" in part or "\\" in part or _STRUCTURED.match(part))


def _as_taken(parser: OverridesParser, part: str) -> str:
    try:
        parser.parse_override(f"key={part}")
    except HydraException:
        return quoted(part)
    return part
