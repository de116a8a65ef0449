"""Checkpoints on storage: one folder each, with a note that describes the checkpoint and marks it as complete.

The note, `.dlemu-checkpoint.json`, is written with `complete` false before the first byte, and again with true when the
last rank is done, so that interrupted checkpoints can be recognised. DLIO's checkpoints have no note.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import msgspec

from datagen.content import BULK_VERSION
from datagen.errors import SpaceError, UserError, no_space
from datagen.storage.storage_base import StorageBase, read_whole, write_whole
from dlemu.config.schema import Checkpoint, Model

NOTE = ".dlemu-checkpoint.json"
NOTE_VERSION = 1
BLOCKS = ".dlemu-checkpoints.json"  # lists the folders that training runs of dlemu have written or will write
_FOLDER = re.compile(r"global_epoch1_step([0-9]+)")  # DLIO's name for the folder of checkpoint k without training


@dataclass(frozen=True, kw_only=True)
class StoredNote:
    """The note of a checkpoint: everything needed to read and verify it."""

    version: int = NOTE_VERSION
    bulk_version: int = BULK_VERSION
    complete: bool = False
    seed: int  # of the content; each run has its own
    checkpoint: int
    ranks: int  # of the run that wrote the checkpoint; the first is rank `settings.first_rank` of the job
    bytes: int  # of all files
    model: Model
    settings: Checkpoint

    @property
    def description(self) -> str:
        """Model, ranks, bytes and format, for messages."""
        writers = f"{self.ranks} ranks from rank {self.settings.first_rank} on"
        return f"{self.model.name} by {writers}, {self.bytes:,} bytes in format {self.settings.format}"


def user_error(error: OSError, path: str, size_bytes: int = 0) -> UserError:
    """Return the error to report for a failed call on a file or folder; `size_bytes` of the file is 0 if unknown."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needs = f"needs {size_bytes} bytes" if size_bytes else "could not be written"
        return SpaceError(
            f"{no_space(error)}: checkpoint {path} {needs}; free some space or set checkpoint.checkpoint_folder to "
            "another disk"
        )
    is_refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
    advice = "" if is_refused else "see `dmesg` and what else uses the folder, or "
    return UserError(
        f"{path} can't be written, removed or accessed: {error.strerror or error}; {advice}set "
        "checkpoint.checkpoint_folder to another one"
    )


def folder_name(checkpoint: int | str) -> str:
    """Return the name of a checkpoint's folder, as in DLIO; with a shell pattern such as {1..3}, a pattern of names."""
    return f"global_epoch1_step{checkpoint}"


def folder_of(checkpoint_folder: str, checkpoint: int) -> str:
    """Return the path of a checkpoint's folder."""
    return f"{checkpoint_folder.rstrip('/')}/{folder_name(checkpoint)}"


def stored_checkpoints(storage: StorageBase, checkpoint_folder: str) -> list[int]:
    """Return the sorted numbers of a folder's checkpoints, complete or not; [] without the folder. Raises UserError."""
    try:
        with storage.entries(checkpoint_folder.rstrip("/") or "/") as entries:
            matches = [_FOLDER.fullmatch(entry.name) for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise user_error(error, checkpoint_folder) from error
    return sorted(int(match[1]) for match in matches if match)


def read_note(storage: StorageBase, folder: str) -> StoredNote | None:
    """Return a checkpoint's note; None if it has none (DLIO's). Raises UserError if the note is damaged."""
    path = f"{folder}/{NOTE}"
    try:
        data = bytes(read_whole(storage, path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise user_error(error, path) from error
    try:
        note = msgspec.json.decode(data, type=StoredNote)
    except (ValueError, RecursionError) as error:  # errors of msgspec and of UTF-8
        raise UserError(f"{path} is damaged ({error}): write the checkpoint again") from error
    if (note.version, note.bulk_version) != (NOTE_VERSION, BULK_VERSION):
        raise UserError(f"{path} was written by another version of dlemu: write the checkpoint again")
    return note


def write_note(storage: StorageBase, folder: str, note: StoredNote, *, fsync: bool) -> None:
    """Write or replace a checkpoint's note. Raises OSError."""
    data = msgspec.json.format(msgspec.json.encode(note), indent=1) + b"\n"
    write_whole(storage, f"{folder}/{NOTE}", data, sync=fsync)


def files_in(storage: StorageBase, folder: str) -> Iterator[str]:
    """Yield the names of a checkpoint's files, including incomplete ones, without its note."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), storage.entries(folder) as entries:
        yield from (entry.name for entry in entries if entry.name != NOTE and not entry.is_dir())


def remove_checkpoint(storage: StorageBase, folder: str, names: Collection[str]) -> None:
    """Remove the files `names` of a checkpoint, then its note, and the folder if it is empty. Never follows a link.

    First marks the note as incomplete: if removing fails, the remaining files do not look complete, and a later run
    still recognises them as dlemu's.
    """
    if is_link(storage, folder):
        return
    with contextlib.suppress(OSError, UserError):  # no space for the new note, or the old one is damaged
        if (note := read_note(storage, folder)) is not None and note.complete:
            write_note(storage, folder, replace(note, complete=False), fsync=False)
    with contextlib.suppress(OSError):
        storage.remove_unfinished(folder)
    for name in [*(name for name in files_in(storage, folder) if name in names), NOTE]:
        with contextlib.suppress(FileNotFoundError):
            storage.remove(f"{folder}/{name}")
    with contextlib.suppress(OSError):
        storage.remove_folder(folder)


def is_link(storage: StorageBase, folder: str) -> bool:
    """Return whether a folder is a symbolic link."""
    local = storage.local_path(folder)
    return local is not None and os.path.islink(local)


def claim_blocks(storage: StorageBase, checkpoint_folder: str, names: Collection[str]) -> None:
    """Add the folders `names`, which a training run will write or replace, to the list in the file BLOCKS.

    Raises UserError if one of them is a symbolic link, or holds files and is not in the list yet; raises OSError.
    """
    folder = checkpoint_folder.rstrip("/")
    list_path = f"{folder}/{BLOCKS}"
    claimed = set[str]()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        storage.size_bytes(list_path)  # refuses pipes and devices before one is opened
        claimed.update(msgspec.json.decode(bytes(read_whole(storage, list_path)), type=list[str]))
    for name in sorted(_names_in(storage, folder).intersection(names)):
        path = f"{folder}/{name}"
        if is_link(storage, path) or (name not in claimed and _names_in(storage, path)):
            raise UserError(
                f"{path} holds files that dlemu did not write, and this run would write there: set "
                "checkpoint.checkpoint_folder to a new folder"
            )
    storage.make_folder(folder)
    write_whole(storage, list_path, msgspec.json.encode(sorted(claimed.union(names))), sync=False)


def block_name(epoch: int, block: int) -> str:
    """Return the name of the folder of a training run's checkpoint, as in DLIO."""
    return f"epoch_{epoch}_block_{block}"


def _names_in(storage: StorageBase, folder: str) -> set[str]:
    """Return the names in a folder: none if it doesn't exist, its own path if it is a file."""
    try:
        with storage.entries(folder) as entries:
            return {entry.name for entry in entries}
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        return {folder}
