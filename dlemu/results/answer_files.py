"""Writes and reads the answers of commands (search, sweep, comparison, prediction, probe, ...) as JSON files.

Fields may be added within a schema version; none changes its meaning or disappears. Files of older versions load:
missing fields have defaults, unknown keys are ignored, and the previous version is upgraded where its schema differs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from datagen import owned
from datagen.atomic import ELSEWHERE, write_text
from datagen.errors import SpaceError, UserError
from dlemu.results.untrusted_files import read_untrusted

ANSWER_VERSION = 1
"""`schema_version` of answers whose type has no other default for it."""

A = TypeVar("A")
Upgrade = Callable[[Mapping[str, Any]], object]
"""Converts an answer of the previous version to today's schema; raises msgspec.ValidationError."""


def to_json(answer: object) -> str:
    """Return a typed value as the text of its JSON file."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n"


def save_answer(folder: str, name: str, answer: object) -> None:
    """Write an answer atomically (by rename), and mark its folder as dlemu's; raises SpaceError."""
    made = owned.OwnFolder(folder, owned.missing_folders(folder), marked=False)
    try:
        write_text(folder, name, to_json(answer))
    except SpaceError:
        made.drop()
        raise
    try:
        owned.claim(folder)
    except OSError as error:
        marker = os.path.join(folder, owned.MARKER)
        raise SpaceError(f"{marker} could not be written: {error.strerror}; free some space, or {ELSEWHERE}") from error


def read_answer(folder: str, name: str, kind: type[A], upgrade: Upgrade | None = None) -> A | None:
    """Return the answer in a file, None when there is none; raises UserError when it is damaged or not dlemu's.

    `upgrade` converts answers of the previous version.
    """
    path = os.path.join(folder, name)
    if not os.path.lexists(path):
        return None
    try:
        answer = msgspec.json.decode(read_untrusted(path))
    except (ValueError, RecursionError) as error:  # errors of msgspec and of UTF-8
        raise UserError(f"{path} is not JSON ({error}): it is damaged; delete it to start over") from None
    version = answer.get("schema_version") if isinstance(answer, Mapping) else None
    if version is None:
        raise UserError(f"{path} has no schema_version: wanted a file that dlemu wrote; delete this one to start over")
    wanted = getattr(kind, "schema_version", ANSWER_VERSION)
    is_older = upgrade is not None and version == wanted - 1
    if version != wanted and not is_older:
        raise UserError(f"{path} has schema_version {version!r}, wanted {wanted}: another version of dlemu wrote it")
    try:
        return msgspec.convert(upgrade(answer) if upgrade is not None and is_older else answer, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is damaged ({error}), or of another version of dlemu") from None
