"""Checkpoints inside training: the model's bytes written, synced and timed, while the accelerators stand still."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass

import numpy as np

from datagen.content import Content
from datagen.errors import SpaceError, UserError
from datagen.storage.storage_base import StorageBase
from dlemu.comm import Comm
from dlemu.comm.clock import Clock
from dlemu.config.schema import Checkpoint

_CHUNK_BYTES = 8 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """One checkpoint as rank 0 saw it, from the first byte to the last rank's sync."""

    epoch: int
    block: int
    bytes: int
    """Bytes of all ranks."""
    started_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended_ns - self.started_ns) / 1e9


def save_checkpoint(
    settings: Checkpoint,
    storage: StorageBase,
    model_bytes: int,
    comm: Comm,
    clock: Clock,
    *,
    epoch: int,
    block: int,
) -> SavedCheckpoint:
    """Write one checkpoint: by rank 0 alone or by every rank, as `checkpoint.type` says; all ranks wait for the last.

    Raises SpaceError when the disk is full, UserError when the folder can't be written.
    """
    started_ns = comm.all_reduce_max(clock.now_ns())
    writers = comm.size if settings.type == "all_ranks" else 1
    if comm.rank < writers:
        folder = f"{settings.checkpoint_folder.rstrip('/')}/epoch_{epoch}_block_{block}"
        content = Content(epoch << 20 | block, 0.0)
        _write(storage, folder, f"rank_{comm.rank}.ckpt", model_bytes, content, file=comm.rank, fsync=settings.fsync)
    ended_ns = comm.all_reduce_max(clock.now_ns())
    return SavedCheckpoint(
        epoch=epoch, block=block, bytes=model_bytes * writers, started_ns=started_ns, ended_ns=ended_ns
    )


def _write(
    storage: StorageBase, folder: str, name: str, size_bytes: int, content: Content, *, file: int, fsync: bool
) -> None:
    path = f"{folder}/{name}"
    buffer = np.empty(min(_CHUNK_BYTES, max(1, size_bytes)), np.uint8)
    try:
        storage.make_folder(folder)
        with contextlib.suppress(FileNotFoundError):
            storage.remove(path)  # that of an earlier run: there may be no space for both
        writer = storage.create(path)
        try:
            for offset in range(0, size_bytes, _CHUNK_BYTES):
                chunk = buffer[: min(_CHUNK_BYTES, size_bytes - offset)]
                content.fill(chunk, file, offset)
                writer.write(chunk.data)
            if fsync:
                writer.sync()
            writer.commit()
        except BaseException:
            writer.discard()
            raise
    except OSError as error:
        raise _explained(error, path, size_bytes) from error


def _explained(error: OSError, path: str, size_bytes: int) -> UserError:
    if error.errno in _NO_SPACE:
        return SpaceError(
            f"the disk is full: checkpoint {path} wants {size_bytes} bytes; free some space or set "
            "checkpoint.checkpoint_folder to another disk"
        )
    return UserError(
        f"checkpoint {path} can't be written: {error.strerror or error}; set "
        "checkpoint.checkpoint_folder to a folder you may write"
    )
