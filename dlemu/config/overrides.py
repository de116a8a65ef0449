"""Parses overrides in Hydra's grammar: `KEY=VALUE`, also with + or ++, or with DLIO's prefix `workload.`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from datagen.errors import UserError
from datagen.spec import joined_problems
from datagen.withheld import scrubbed
from dlemu.config.literal import is_plain
from dlemu.config.published import check_letters, given_options
from dlemu.config.translate import KeyPath
from dlemu.config.workload_files import workload_names

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

WORKLOAD = ("workload",)


@dataclass(frozen=True)
class Setting:
    """A value for a key, whose parts are in `path`; `text` is the override as the user wrote it."""

    path: KeyPath
    value: Any
    text: str


@dataclass(frozen=True)
class Request:
    """All overrides, in the order given."""

    all: tuple[Setting, ...]

    @property
    def workload(self) -> str:
        return next((setting.value for setting in reversed(self.all) if setting.path == WORKLOAD), "")

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(setting for setting in self.all if setting.path != WORKLOAD)


def parse(overrides: Sequence[str]) -> Request:
    """Parse overrides, with or without `++` and `workload.`; raises UserError that lists all that are wrong."""
    parsed, problems = [], []
    for text in overrides:
        try:
            check_letters([text])
            parsed.append(_parse_one(text))
        except UserError as error:
            problems.append(scrubbed(str(error), given_options([text])))
    if problems:
        raise UserError(joined_problems(problems))
    return Request(tuple(parsed))


def given_keys(overrides: Sequence[str]) -> set[str]:
    return {".".join(setting.path) for setting in parse(overrides).all}


def _parse_one(text: str) -> Setting:
    if text.startswith("~"):
        raise UserError(f"{text}: nothing can be deleted, every setting has a default; {text[1:]}=null restores it")
    if "=" not in text:
        hint = f"did you mean workload={text}? " if text in workload_names() else ""
        raise UserError(f"{text!r} is not a setting: {hint}wanted KEY=VALUE, as in workload=unet3d or ranks=4")
    setting = plain_setting(text) or _by_grammar(text)
    if setting.path == WORKLOAD and not (isinstance(setting.value, str) and setting.value):
        raise UserError(f"{text}: wanted workload=NAME, or the path of a .yaml file")
    return setting


def plain_setting(text: str) -> Setting | None:
    """Parse a key with an unquoted number, word or path, as nearly all are; None where it needs Hydra (0.1 CPU s)."""
    key, _, value = text.partition("=")
    if not _PLAIN_KEY.fullmatch(key):
        return None
    path = _inner(tuple(key.lstrip("+").split(".")))
    if value in _CONSTANTS:
        return Setting(path, _CONSTANTS[value], text)
    if _PLAIN_NUMBER.fullmatch(value):
        return Setting(path, float(value) if "." in value else int(value), text)
    return Setting(path, value, text) if is_plain(value) else None


def _by_grammar(text: str) -> Setting:
    from hydra.errors import HydraException

    from dlemu.config.points import parse_word

    key, value = text.split("=", 1)
    try:
        parsed = parse_word(text)
    except HydraException as error:
        raise UserError(_grammar_problem(key, value, error)) from None
    if parsed.is_sweep_override():
        raise UserError(
            f"{text} has several values: dlemu takes one value for each key; start it once for each value,"
            f" write a list as {key}=[...], or quote a text: {_quoted_example(key, value)}"
        )
    return Setting(_path(parsed, text), parsed.value(), text)


def _grammar_problem(key: str, value: str, error: Exception) -> str:
    reason = str(error).split("\n", 1)[0]
    return (
        f"{key}={value} is not in hydra's grammar ({reason}): wanted KEY=VALUE;"
        f" a value with special characters needs quotes, in a shell: {_quoted_example(key, value)}"
    )


def _quoted_example(key: str, value: str) -> str:
    inner = value.replace('"', "")
    return shlex.quote(f'{key}="{inner}"')


def _path(parsed: Override, text: str) -> KeyPath:
    if parsed.key_or_group == "workload" and parsed.package in (None, "_global_"):
        return WORKLOAD
    if parsed.package is not None:
        raise UserError(f"{text}: only workload has a package (workload@_global_=NAME); write a key without '@'")
    parts = tuple(parsed.key_or_group.replace("/", ".").split("."))
    if not all(parts):
        raise UserError(f"{text}: the key is empty; wanted KEY=VALUE, as in reader.batch_size=4")
    return _inner(parts)


def _inner(parts: KeyPath) -> KeyPath:
    """Return a key's path without DLIO's prefix `workload`."""
    return parts[1:] if parts[0] == "workload" and len(parts) > 1 else parts


_PLAIN_KEY = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_CONSTANTS = {"true": True, "false": False, "null": None, "": ""}


def take_word(words: Sequence[str], key: str) -> tuple[str, list[str]]:
    """Return the text that `key` has in overrides, empty when it is not set, and the other overrides."""
    taken = [word for word in words if _is_of(word, key)]
    return (text_of(taken[-1]) if taken else ""), [word for word in words if not _is_of(word, key)]


def _is_of(word: str, key: str) -> bool:
    written, equals, _ = word.partition("=")
    return bool(equals) and written.lstrip("+").removeprefix("workload.") == key


def text_of(word: str) -> str:
    """Return an override's text by the grammar, or as it stands where that reads no text; `~` is the user's home."""
    try:
        value = _parse_one(word).value
    except UserError:  # a launcher, for one, may have commas
        value = ()
    if value is None:
        return ""
    return os.path.expanduser(value if isinstance(value, str) else word.split("=", 1)[1].strip("\"'"))
