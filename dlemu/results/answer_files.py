"""Writes and reads results as JSON files: answers of commands (search, sweep, ...), and files of any source.

Fields may be added within a schema version, with defaults; none changes its meaning or disappears. Unknown keys are
ignored. Whatever a file is, reading it ends, and uses bounded memory.
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
    """What every result begins with."""

    schema_version: int = ANSWER_VERSION
    issues: tuple[str, ...] = ()
    """What a reader of the numbers must know, as sentences."""
    complete: bool = True
    """Whether everything planned was measured."""


@dataclass(frozen=True)
class SummaryHead:
    """The fields of an answer, a summary.json or a facts.json that identify it."""

    schema_version: int | None = None
    kind: str = ""


def to_json(answer: object) -> str:
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n"


def save_answer(folder: str, name: str, answer: object) -> None:
    """Write an answer atomically (by rename), and mark its folder as dlemu's; raises SpaceError."""
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
    """Return the answer in a file, None when there is none; raises UserError when it is damaged or not dlemu's."""
    path = os.path.join(folder, name)
    if not os.path.lexists(path):
        return None
    return decode_versioned(path, answer_type)


def open_untrusted(path: str, most_bytes: int) -> int:
    """Return a descriptor of a regular file; raises UserError for a pipe, a device, or a file that is far too large."""
    try:
        descriptor = open_regular(path)
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > most_bytes:
            os.close(descriptor)
        check_size(path, size_bytes, most_bytes)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        folder, is_missing = os.path.dirname(path), isinstance(error, FileNotFoundError | NotADirectoryError)
        if is_missing and folder and not os.path.isdir(folder):
            raise UserError(f"{folder} is not a folder: name the folder of a result") from error
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} can't be read: {reason}; name the folder of a result") from error
    return descriptor


def read_untrusted(path: str, most_bytes: int = MOST_COLLECTED_BYTES) -> bytes:
    """Return a file's bytes; raises UserError."""
    with open(open_untrusted(path, most_bytes), "rb") as file:
        try:
            return file.read(os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise UserError(f"{path} can't be read: {error.strerror}; copy it again from the run's folder") from error


def decode_untrusted(path: str, value_type: type[A]) -> A:
    """Return the value in a JSON file; raises UserError when it is not of this type."""
    try:
        return msgspec.json.decode(read_untrusted(path), type=value_type)
    except (ValueError, RecursionError) as error:  # errors of msgspec and of UTF-8
        raise UserError(f"{path} is damaged ({error}): it is not the JSON that dlemu wrote; copy it again") from error


def decode_versioned(path: str, value_type: type[A]) -> A:
    """Return the value in a JSON file; raises UserError also for a file of another version than this dlemu writes."""
    version = decode_untrusted(path, SummaryHead).schema_version
    if version != ANSWER_VERSION:
        raise UserError(
            f"{path} has schema_version {version!r}, wanted {ANSWER_VERSION}: another version of dlemu wrote it; read "
            "it with that version, or measure again"
        )
    return decode_untrusted(path, value_type)
