"""Writes and reads results as JSON files. Files may come from anywhere: reading one always ends, in bounded memory.

Within a schema version, only fields with defaults are added, and none changes its meaning. Unknown keys are ignored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from datagen import owned
from datagen.atomic import ELSEWHERE, write_text
from datagen.errors import SpaceError, UserError
from datagen.regular import MOST_COLLECTED_BYTES, check_size, open_regular

ANSWER_VERSION = 1
"""`schema_version` of all results, and of facts.json."""

A = TypeVar("A")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The first fields of every result."""

    schema_version: int = ANSWER_VERSION
    issues: tuple[str, ...] = ()
    """What a reader of the numbers must know, as sentences."""
    complete: bool = True
    """Whether everything planned was measured."""


@dataclass(frozen=True)
class SummaryHead:
    """The fields by which a JSON file of any result is identified."""

    schema_version: int | None = None
    kind: str = ""


def to_json(answer: object) -> str:
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n"


def save_answer(folder: str, name: str, answer: object) -> None:
    """Write an answer atomically (by rename), and mark the folder as one of dlemu's; raises SpaceError."""
    own_folder = owned.OwnFolder(folder, owned.missing_folders(folder), marked=False)
    try:
        write_text(folder, name, to_json(answer))
    except SpaceError:
        own_folder.drop()
        raise
    try:
        owned.claim(folder)
    except OSError as error:
        marker = os.path.join(folder, owned.MARKER)
        raise SpaceError(f"{marker} could not be written: {error.strerror}; free some space, or {ELSEWHERE}") from error


def read_answer(folder: str, name: str, answer_type: type[A]) -> A | None:
    """Return the answer in a file, None if there is no file; raises UserError if it is damaged or not dlemu's."""
    path = os.path.join(folder, name)
    return decode_versioned(path, answer_type) if os.path.lexists(path) else None


def open_untrusted(path: str, max_bytes: int) -> int:
    """Open a regular file and return its descriptor; raises UserError for other files, and above `max_bytes`."""
    try:
        descriptor = open_regular(path)
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > max_bytes:
            os.close(descriptor)
        check_size(path, size_bytes, max_bytes)
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
        folder, is_missing = os.path.dirname(path), isinstance(error, FileNotFoundError | NotADirectoryError)
        if is_missing and folder and not os.path.isdir(folder):
            raise UserError(f"{folder} is not a folder: name the folder of a result") from error
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} can't be read: {reason}; name the folder of a result") from error
    return descriptor


def read_untrusted(path: str, max_bytes: int = MOST_COLLECTED_BYTES) -> bytes:
    """Return the bytes of a regular file; raises UserError."""
    with open(open_untrusted(path, max_bytes), "rb") as file:
        try:
            return file.read(os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise UserError(f"{path} can't be read: {error.strerror}; copy it again from the run's folder") from error


def decode_untrusted(path: str, value_type: type[A]) -> A:
    """Return the value in a JSON file; raises UserError if it does not have the type."""
    try:
        return msgspec.json.decode(read_untrusted(path), type=value_type)
    except (ValueError, RecursionError) as error:  # ValueError: from msgspec, or invalid UTF-8
        raise UserError(f"{path} is damaged ({error}): it is not the JSON that dlemu wrote; copy it again") from error


def decode_versioned(path: str, value_type: type[A]) -> A:
    """Return the value in a JSON file; raises UserError if its type, or its schema_version, is another one."""
    version = decode_untrusted(path, SummaryHead).schema_version
    if version != ANSWER_VERSION:
        raise UserError(
            f"{path} has schema_version {version!r}, wanted {ANSWER_VERSION}: another version of dlemu wrote it; read "
            "it with that version, or measure again"
        )
    return decode_untrusted(path, value_type)
