"""Writes an override as text that reads back as the same value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

_WORDS = ("null", "true", "false", "nan", "inf")


def override(path: Iterable[str], value: object) -> str:
    """Write one override that `parse` reads back as this value; strings are quoted where the grammar needs it."""
    return f"{'.'.join(path)}={_literal(value)}"


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_literal(item) for item in value) + "]"
    text = str(value)
    return text if is_plain(text) else quoted(text)


def is_plain(text: str) -> bool:
    """Return whether the grammar reads the unquoted text as this string: first a letter, / or ., nothing special."""
    if not text.isascii() or not (text[:1].isalpha() or text[:1] in ("/", ".")) or text.lower() in _WORDS:
        return False
    is_number = text[0] == "." and text[1:2].isdigit()
    return not is_number and all(character.isalnum() or character in "/._-" for character in text)


def quoted(text: str) -> str:
    """Quote a text for Hydra's grammar, in single quotes: backslashes before a quote or the end are doubled."""
    pieces, backslashes = [], 0
    for character in text:
        if character == "\\":
            backslashes += 1
            continue
        pieces.append("\\" * (2 * backslashes + 1 if character == "'" else backslashes) + character)
        backslashes = 0
    return "'" + "".join(pieces) + "\\" * (2 * backslashes) + "'"
