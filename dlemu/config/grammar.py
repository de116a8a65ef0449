"""Parses one override by Hydra's grammar, and texts with characters that the grammar does not allow."""

from __future__ import annotations

import re

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from dlemu.config.literal import quoted

_QUOTES = ("'", '"')
_STRUCTURED = re.compile(r"""\s*(?:[\[{(\]})'"]|\w+\(|$)""")
"""The start of a list, a dictionary, a quotation or a call such as `range(1,9)`; or an empty value."""


def parse_word(text: str) -> Override:
    """Parse one `KEY=VALUE` by Hydra's grammar; raises HydraException.

    Values that the grammar accepts keep their meaning. A text with other characters, such as /mnt/ä or /mnt/a(1), is
    read as if it were quoted, as is each of several (`/mnt/ä,/mnt/b`), unless it may be an unfinished list, dictionary,
    call, quotation or reference.
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
