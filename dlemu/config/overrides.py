"""What the user wrote on the command line, in hydra's grammar: `KEY=VALUE`, plain, with + or ++, or in DLIO's way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from datagen.errors import UserError
from datagen.spec import together
from datagen.withheld import scrubbed
from dlemu.config.published import check_letters, given_options
from dlemu.config.translate import KeyPath
from dlemu.config.workload_files import workload_names

WORKLOAD = ("workload",)


@dataclass(frozen=True)
class Setting:
    """One value that the user gave for one key, whose parts are in `path`; `text` is the override as written."""

    path: KeyPath
    value: Any
    text: str


@dataclass(frozen=True)
class Request:
    """All that the user asked for, in the order given."""

    all: tuple[Setting, ...]

    @property
    def workload(self) -> str:
        """What `workload=` names, the last time it does; empty when the user named none."""
        return next((setting.value for setting in reversed(self.all) if setting.path == WORKLOAD), "")

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The values that apply on top of the workload."""
        return tuple(setting for setting in self.all if setting.path != WORKLOAD)


def parse(overrides: Sequence[str]) -> Request:
    """Read overrides; `reader.batch_size=4`, `++reader.batch_size=4` and `++workload.reader.batch_size=4` are one.

    Raises UserError that lists every override that is no single value for a key.
    """
    parser = OverridesParser.create()
    parsed, problems = [], []
    for text in overrides:
        try:
            check_letters([text])
            parsed.append(_parse_one(parser, text))
        except UserError as error:
            problems.append(scrubbed(str(error), given_options([text])))
    if problems:
        raise UserError(together(problems))
    return Request(tuple(parsed))


def given_keys(overrides: Sequence[str]) -> set[str]:
    """Return the keys that the user gave a value for."""
    return {".".join(setting.path) for setting in parse(overrides).all}


def parse_word(parser: OverridesParser, text: str) -> Override:
    """Return what hydra's grammar makes of one `KEY=VALUE`; raises HydraException.

    What it takes keeps its meaning. A text that it has no characters for, such as /mnt/ä or /mnt/a(1), is read as if
    it were quoted, and so is each of several (`/mnt/ä,/mnt/b`); what may be an unfinished list, dictionary, call,
    quotation or reference is not.
    """
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
        return _quoted(part)
    return part


def override(path: Iterable[str], value: object) -> str:
    """Write one override that `parse` reads back as this value; strings are quoted where the grammar needs it."""
    return f"{'.'.join(path)}={_literal(value)}"


def _parse_one(parser: OverridesParser, text: str) -> Setting:
    if text.startswith("~"):
        raise UserError(f"{text}: nothing can be deleted, every setting has a default; {text[1:]}=null asks for it")
    if "=" not in text:
        hint = f"did you mean workload={text}? " if text in workload_names() else ""
        raise UserError(f"{text!r} is no setting: {hint}wanted KEY=VALUE, as in workload=unet3d or ranks=4")
    key, value = text.split("=", 1)
    try:
        parsed = parse_word(parser, text)
    except HydraException as error:
        raise UserError(_grammar_problem(key, value, error)) from None
    if parsed.is_sweep_override():
        raise UserError(
            f"{text} has several values: dlemu takes one value for each key; start it once for each value,"
            f" write a list as {key}=[...], or quote a text: {_quoted_example(key, value)}"
        )
    setting = Setting(_path(parsed, text), parsed.value(), text)
    if setting.path == WORKLOAD and not (isinstance(setting.value, str) and setting.value):
        raise UserError(f"{text}: wanted workload=NAME, or the path of a .yaml file")
    return setting


def _grammar_problem(key: str, value: str, error: HydraException) -> str:
    reason = str(error).split("\n", 1)[0]
    return (
        f"{key}={value} is not in hydra's grammar ({reason}): wanted KEY=VALUE;"
        f" a value with special characters needs quotes, in a shell: {_quoted_example(key, value)}"
    )


def _quoted_example(key: str, value: str) -> str:
    inner = value.replace('"', "")
    return f"""'{key}="{inner}"'"""


def _path(parsed: Override, text: str) -> KeyPath:
    if parsed.key_or_group == "workload" and parsed.package in (None, "_global_"):
        return WORKLOAD
    if parsed.package is not None:
        raise UserError(f"{text}: only workload has a package (workload@_global_=NAME); write a key without '@'")
    parts = tuple(parsed.key_or_group.replace("/", ".").split("."))
    if not all(parts):
        raise UserError(f"{text}: the key is empty; wanted KEY=VALUE, as in reader.batch_size=4")
    return parts[1:] if parts[0] == "workload" and len(parts) > 1 else parts


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
    return text if _is_plain(text) else _quoted(text)


def _is_plain(text: str) -> bool:
    """Whether the grammar reads the bare text as this string: a letter or a path first, then no special character."""
    if not text.isascii() or not (text[:1].isalpha() or text[:1] in ("/", ".")) or text.lower() in _WORDS:
        return False
    # A leading dot before a digit would be a number.
    return not text[1:2].isdigit() and all(character.isalnum() or character in "/._-" for character in text)


_QUOTES = ("'", '"')
_STRUCTURED = re.compile(r"""\s*(?:[\[{(\]})'"]|\w+\(|$)""")
"""The begin of a list, a dictionary, a quotation or a call, as in `range(1,9)`, or nothing at all."""
_WORDS = ("null", "true", "false", "nan", "inf")


def _quoted(text: str) -> str:
    """Put a text into single quotes as hydra's grammar wants it: backslashes before a quote or the end are doubled."""
    pieces, backslashes = [], 0
    for character in text:
        if character == "\\":
            backslashes += 1
            continue
        pieces.append("\\" * (2 * backslashes + 1 if character == "'" else backslashes) + character)
        backslashes = 0
    return "'" + "".join(pieces) + "\\" * (2 * backslashes) + "'"


def take_word(words: Sequence[str], key: str) -> tuple[str, list[str]]:
    """Return the value of KEY=VALUE among overrides, empty when it is not there, and the other words."""
    values = [word.split("=", 1)[1] for word in words if word.startswith(f"{key}=")]
    return (values[-1].strip("\"'") if values else ""), [word for word in words if not word.startswith(f"{key}=")]
