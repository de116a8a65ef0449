"""What is in a checkpoint folder: one folder a checkpoint, each with a note of what it is and whether it is whole.

The note, `.dlemu-checkpoint.json`, is written before the first byte with `complete` false and again after the last
rank was done: a checkpoint that was cut short says so, however the run ended. Folders of DLIO have none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import msgspec

from datagen.bulk_content import BULK_VERSION
from datagen.errors import UserError
from datagen.storage.storage_base import StorageBase, read_whole, write_whole
from dlemu.config.schema import Checkpoint, Model

NOTE = ".dlemu-checkpoint.json"
NOTE_VERSION = 1
BLOCKS = ".dlemu-checkpoints.json"
"""Lists the folders of checkpoints that training runs of dlemu wrote."""
_FOLDER = re.compile(r"global_epoch1_step([0-9]+)")
"""DLIO's name for checkpoint k of a run that only checkpoints."""


@dataclass(frozen=True, kw_only=True)
class StoredNote:
    """What one checkpoint is."""

    version: int = NOTE_VERSION
    bulk_version: int = BULK_VERSION
    complete: bool = False
    seed: int
    """Of its bytes: each run has its own."""
    checkpoint: int
    ranks: int
    """Of the run that wrote it; its first is `settings.first_rank` of the job."""
    hosts: int
    bytes: int
    """Of all files."""
    model: Model
    settings: Checkpoint

    @property
    def what(self) -> str:
        """What it is, in a few words."""
        return f"{self.model.name} by {self.ranks} ranks, format {self.settings.format}"


def folder_name(checkpoint: int | str) -> str:
    """Return the name of a checkpoint's folder, DLIO's; of several, with a shell's pattern for their numbers."""
    return f"global_epoch1_step{checkpoint}"


def folder_of(checkpoint_folder: str, checkpoint: int) -> str:
    """Return where a checkpoint lies."""
    return f"{checkpoint_folder.rstrip('/')}/{folder_name(checkpoint)}"


def stored_checkpoints(storage: StorageBase, checkpoint_folder: str) -> list[int]:
    """Return the numbers of the checkpoints in a folder, whole or not, in order; none where there is no folder.

    Raises UserError for what is not a folder.
    """
    try:
        with storage.entries(checkpoint_folder.rstrip("/") or "/") as entries:
            found = [match for entry in entries if entry.is_dir() and (match := _FOLDER.fullmatch(entry.name))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"checkpoint.checkpoint_folder {checkpoint_folder} can't be listed: {error.strerror or error}; set it to a "
            "folder"
        ) from error
    return sorted(int(match[1]) for match in found)


def read_note(storage: StorageBase, folder: str) -> StoredNote | None:
    """Return a checkpoint's note, None where it has none: DLIO's. Raises UserError for a damaged one."""
    path = f"{folder}/{NOTE}"
    try:
        data = bytes(read_whole(storage, path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(
            f"{path} can't be read: {error.strerror or error}; remove that checkpoint, or set "
            "checkpoint.checkpoint_folder to another folder"
        ) from error
    try:
        note = msgspec.json.decode(data, type=StoredNote)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}): write the checkpoint again") from error
    if (note.version, note.bulk_version) != (NOTE_VERSION, BULK_VERSION):
        raise UserError(f"{path} was written by another version of dlemu: write the checkpoint again")
    return note


def write_note(storage: StorageBase, folder: str, note: StoredNote, *, fsync: bool) -> None:
    """Write a checkpoint's note. Raises OSError."""
    data = msgspec.json.format(msgspec.json.encode(note), indent=1) + b"\n"
    write_whole(storage, f"{folder}/{NOTE}", data, sync=fsync)


def completed(note: StoredNote) -> StoredNote:
    """Return the note of the same checkpoint, whole."""
    return replace(note, complete=True)


def files_in(storage: StorageBase, folder: str) -> Iterator[str]:
    """Yield the names of a checkpoint's files, those under way too, without its note."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), storage.entries(folder) as entries:
        yield from (entry.name for entry in entries if entry.name != NOTE and not entry.is_dir())


def remove_checkpoint(storage: StorageBase, folder: str, names: Collection[str]) -> None:
    """Remove a checkpoint: its note first, so that what is left is never taken for whole, then the files of its plan.

    Files of other names stay, and with them their folder; behind a link nothing is touched.
    """
    if is_link(storage, folder):
        return
    for name in (NOTE, *[name for name in files_in(storage, folder) if name in names]):
        with contextlib.suppress(FileNotFoundError):
            storage.remove(f"{folder}/{name}")
    with contextlib.suppress(OSError):
        storage.remove_unfinished(folder)
        storage.remove_folder(folder)


def is_link(storage: StorageBase, folder: str) -> bool:
    """Return whether a folder is a link to somewhere else."""
    local = storage.local_path(folder)
    return local is not None and os.path.islink(local)


def claim_blocks(storage: StorageBase, checkpoint_folder: str, names: Collection[str]) -> None:
    """Note in a checkpoint folder which folders below it a training run will write, before it does.

    What is in them is then replaced. Raises UserError where something lies under a name that no run of dlemu noted,
    OSError.
    """
    folder = checkpoint_folder.rstrip("/")
    noted = _noted_blocks(storage, folder)
    for name in sorted(_there(storage, folder).intersection(names)):
        path = f"{folder}/{name}"
        if is_link(storage, path) or (name not in noted and _holds_anything(storage, path)):
            raise UserError(
                f"{path} holds files that dlemu did not write, and this run would write there: set "
                "checkpoint.checkpoint_folder to a new folder"
            )
    storage.make_folder(folder)
    data = json.dumps(sorted(noted.union(names))).encode()
    write_whole(storage, f"{folder}/{BLOCKS}", data, sync=False)


def block_name(epoch: int, block: int) -> str:
    """Return the name of the folder of a checkpoint inside training, DLIO's."""
    return f"epoch_{epoch}_block_{block}"


def _there(storage: StorageBase, folder: str) -> set[str]:
    try:
        with storage.entries(folder) as entries:
            return {entry.name for entry in entries}
    except FileNotFoundError:
        return set()


def _noted_blocks(storage: StorageBase, folder: str) -> frozenset[str]:
    path = f"{folder}/{BLOCKS}"
    try:
        storage.size_bytes(path)  # refuses what is no file before it is opened
        noted = json.loads(bytes(read_whole(storage, path)))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return frozenset()
    return frozenset(name for name in noted if isinstance(name, str)) if isinstance(noted, list) else frozenset()


def _holds_anything(storage: StorageBase, folder: str) -> bool:
    try:
        with storage.entries(folder) as entries:
            return next(iter(entries), None) is not None
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
