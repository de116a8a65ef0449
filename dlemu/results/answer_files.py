"""Answers of commands as JSON: of a search, a sweep, a comparison, a prediction, a probe. One writer, one reader.

Fields may be added within a schema version; none changes its meaning or disappears. Files of older versions load: what
they lacked has a default, keys that are not known: ignored, and what was shaped otherwise is upgraded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from datagen import owned
from datagen.atomic import write_text
from datagen.errors import UserError
from dlemu.results.untrusted_files import read_untrusted

ANSWER_VERSION = 1
"""`schema_version` of answers whose type names no other one as its default."""

A = TypeVar("A")
Upgrade = Callable[[Mapping[str, Any]], object]
"""Returns an answer of the version before in the shape of today; raises msgspec.ValidationError."""


def to_json(answer: object) -> str:
    """Return a typed value as its file holds it."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n"


def save_answer(folder: str, name: str, answer: object) -> None:
    """Write an answer by rename, into a folder that is marked as dlemu's; raises SpaceError."""
    write_text(folder, name, to_json(answer))
    owned.claim(folder)


def read_answer(folder: str, name: str, kind: type[A], upgrade: Upgrade | None = None) -> A | None:
    """Return what the file holds, None when it is not there; raises UserError when it is damaged or none of ours.

    `upgrade` takes what the version before this one wrote.
    """
    path = os.path.join(folder, name)
    if not os.path.lexists(path):
        return None
    try:
        answer = msgspec.json.decode(read_untrusted(path))
    except (ValueError, RecursionError) as error:  # msgspec's errors and those of UTF-8
        raise UserError(f"{path} is not JSON ({error}); wanted what dlemu wrote: delete it to start over") from None
    version = answer.get("schema_version") if isinstance(answer, Mapping) else None
    if version is None:
        raise UserError(f"{path} has no schema_version: wanted what dlemu wrote")
    wanted = getattr(kind, "schema_version", ANSWER_VERSION)
    is_older = upgrade is not None and version == wanted - 1
    if version != wanted and not is_older:
        raise UserError(f"{path} has schema_version {version!r}, wanted {wanted}: it is of another version of dlemu")
    try:
        return msgspec.convert(upgrade(answer) if upgrade is not None and is_older else answer, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is damaged ({error}), or of another version of dlemu") from None
