"""Removes credentials from workloads and command lines before they are written to files or messages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from datagen.errors import UserError
from datagen.withheld import WITHHELD, printable, public_option, public_options, public_text

if TYPE_CHECKING:  # every command that fails imports this module
    from dlemu.config.schema import Workload

_OPTION = re.compile(r"([+]*(?:workload[./])?storage[./]storage_options[./]([^=]*)=)(.*)", re.DOTALL)
_OPTIONS = re.compile(r"(.*?storage_options[^=:]*[=:]).*", re.DOTALL)
"""Storage options in another form: a whole section, or an override that no grammar accepts."""
_SECRET_WORD = re.compile(
    r"([^\s=]*(?:secret|passw|token|credential|access_?key|api_?key)[^\s=]*=).*", re.IGNORECASE | re.DOTALL
)

_UNDECODED = re.compile("[\ud800-\udfff]")


def published(workload: Workload) -> Workload:
    """Return the workload without credentials: options that may be some, and users in URLs, are withheld."""
    public: Workload = _public(workload)
    return public


def _public(value: Any, name: str = "") -> Any:
    """Return a tree of settings without credentials; `name` is its key, which in a scale's entries may have dots."""
    above, _, option = name.rpartition(".")
    if above.endswith("storage_options"):
        return public_option(option, value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{part.name: _public(getattr(value, part.name), part.name) for part in fields(value)})
    if isinstance(value, Mapping):
        if name.endswith("storage_options"):
            return public_options(value)
        return {key: _public(item, key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_public, value))
    return public_text(value) if isinstance(value, str) else value


def check_letters(words: Iterable[str]) -> None:
    """Raise UserError for a word with bytes that Python could not decode, as it could not be written as UTF-8.

    They are lone surrogates (PEP 383): a name in another encoding, or non-ASCII letters where the locale is C.
    """
    for word in words:
        if _UNDECODED.search(word):
            shown = printable(_without_secret(word))
            raise UserError(
                f"'{shown}' has bytes that are not valid {sys.getfilesystemencoding()}, so results could not name it:"
                " rename it, or give a link to it; where the name is UTF-8, set PYTHONUTF8=1"
            )


def without_secrets(words: Iterable[str]) -> list[str]:
    return [public_text(_without_secret(word)) for word in words]


def _without_secret(word: str) -> str:
    if found := _OPTION.fullmatch(word):
        before, name, value = found.groups()
        is_plain = value.lower() in ("true", "false", "null")
        return word if is_plain or public_option(name, value) != WITHHELD else f"{before}{WITHHELD}"
    if found := _OPTIONS.fullmatch(word):
        return f"{found[1]}{WITHHELD}"
    return _SECRET_WORD.sub(rf"\1{WITHHELD}", word)


def given_options(words: Iterable[str]) -> dict[str, str]:
    found = (_OPTION.fullmatch(word) for word in words)
    return {match[2]: match[3].strip("'\"") for match in found if match}
