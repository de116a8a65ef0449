"""Checkpoints inside training: the model's bytes written, synced and timed, while the accelerators stand still."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

import numpy as np

from datagen.content import Content
from datagen.errors import SpaceError, UserError
from dlemu.comm import Comm
from dlemu.comm.clock import Clock
from dlemu.config.schema import Checkpoint

_CHUNK_BYTES = 8 << 20


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
    settings: Checkpoint, folder: str, model_bytes: int, comm: Comm, clock: Clock, *, epoch: int, block: int
) -> SavedCheckpoint:
    """Write one checkpoint: by rank 0 alone or by every rank, as `checkpoint.type` says; all ranks wait for the last.

    Raises SpaceError when the disk is full, UserError when the folder can't be written.
    """
    started_ns = comm.all_reduce_max(clock.now_ns())
    writers = comm.size if settings.type == "all_ranks" else 1
    if comm.rank < writers:
        path = os.path.join(folder, f"epoch_{epoch}_block_{block}", f"rank_{comm.rank}.ckpt")
        _write(path, model_bytes, seed=epoch << 20 | block, file=comm.rank, fsync=settings.fsync)
    ended_ns = comm.all_reduce_max(clock.now_ns())
    return SavedCheckpoint(
        epoch=epoch, block=block, bytes=model_bytes * writers, started_ns=started_ns, ended_ns=ended_ns
    )


def _write(path: str, size_bytes: int, *, seed: int, file: int, fsync: bool) -> None:
    content, buffer = Content(seed, 0.0), np.empty(min(_CHUNK_BYTES, max(1, size_bytes)), np.uint8)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb", buffering=0) as out:
            for offset in range(0, size_bytes, _CHUNK_BYTES):
                chunk = buffer[: min(_CHUNK_BYTES, size_bytes - offset)]
                content.fill(chunk, file, offset)
                _write_all(out.fileno(), chunk.data)
            if fsync:
                os.fsync(out.fileno())
    except OSError as error:
        raise _explain(error, path, size_bytes) from error


def _write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]


def _explain(error: OSError, path: str, size_bytes: int) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SpaceError(
            f"the disk is full: checkpoint {path} wants {size_bytes} bytes; free some space or set "
            "checkpoint.checkpoint_folder to another disk"
        )
    return UserError(
        f"checkpoint {path} can't be written: {error.strerror}; set "
        "checkpoint.checkpoint_folder to a folder you may write"
    )
