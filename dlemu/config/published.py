"""Removes credentials from workloads and command lines before they are written to files or messages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from datagen.errors import UserError
from datagen.withheld import WITHHELD, printable, public_option, public_options, public_text

if TYPE_CHECKING:  # every command that fails imports this module
    from dlemu.config.schema import Workload

S = TypeVar("S")

_OPTION = re.compile(r"([+]*(?:workload[./])?storage[./]storage_options[./]([^=]*)=)(.*)", re.DOTALL)
_OPTIONS = re.compile(r"(.*?storage_options[^=:]*[=:]).*", re.DOTALL)
"""Storage options in another form: a whole section, or an override that no grammar accepts."""
_SECRET_WORD = re.compile(
    r"([^\s=]*(?:secret|passw|token|credential|access_?key|api_?key)[^\s=]*=).*", re.IGNORECASE | re.DOTALL
)

_UNDECODED = re.compile("[\ud800-\udfff]")


def published(workload: Workload) -> Workload:
    """Return the workload without credentials: options that may be some, and users in URLs, are withheld."""
    storage = workload.storage
    public = replace(
        workload,
        storage=replace(storage, storage_options={}),
        scales=_public_tree(workload.scales),
        kinds=_public_tree(workload.kinds),
    )
    public = _without_users(public)
    return replace(public, storage=replace(public.storage, storage_options=public_options(storage.storage_options)))


def _without_users(section: S) -> S:
    changed: dict[str, Any] = {}
    for field in fields(section):  # type: ignore[arg-type]  # no type says `any dataclass`
        value = getattr(section, field.name)
        if isinstance(value, str):
            changed[field.name] = public_text(value)
        elif isinstance(value, tuple) and all(isinstance(item, str) for item in value):
            changed[field.name] = tuple(map(public_text, value))
        elif is_dataclass(value):
            changed[field.name] = _without_users(value)
    return replace(section, **changed)  # type: ignore[type-var]  # nor here


def _public_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of any settings, such as a scale's entries, without credentials; its keys may have dots."""
    public: dict[str, Any] = {}
    for key, value in tree.items():
        above, _, name = key.rpartition(".")
        if name == "storage_options" and isinstance(value, Mapping):
            public[key] = public_options(value)
        elif above.endswith("storage_options"):
            public[key] = public_option(name, value)
        else:
            public[key] = _public_value(value)
    return public


def _public_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _public_tree(value)
    if isinstance(value, (list, tuple)):
        return [_public_value(item) for item in value]
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
