"""Writes and reads the answers of commands (search, sweep, comparison, prediction, probe, ...) as JSON files.

Fields may be added within a schema version, with defaults; none changes its meaning or disappears. Unknown keys are
ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from datagen import owned
from datagen.atomic import ELSEWHERE, write_text
from datagen.errors import SpaceError, UserError
from dlemu.results.untrusted_files import check_version, read_untrusted

ANSWER_VERSION = 1
"""`schema_version` of all answers."""

A = TypeVar("A")


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


def read_answer(folder: str, name: str, kind: type[A]) -> A | None:
    """Return the answer in a file, None when there is none; raises UserError when it is damaged or not dlemu's."""
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
    check_version(path, version, ANSWER_VERSION)
    try:
        return msgspec.convert(answer, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is damaged ({error}): delete it to start over") from None
