"""Writing a rank's files of one checkpoint: content is generated ahead; write calls and fsync are timed separately."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Sequence

from datagen.errors import SpaceError, UserError, no_space
from datagen.storage.storage_base import StorageBase
from dlemu.checkpoints.file_content import FileContent
from dlemu.checkpoints.movers import Columns, Done, Movers, add_call
from dlemu.checkpoints.piece_ring import PieceRing
from dlemu.ranks import PatienceError, within

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class CheckpointWriter:
    """Writes the files of one checkpoint, one after another, each with several threads.

    Content generation begins with the constructor. Each file appears under its name when it is complete.
    """

    def __init__(
        self,
        storage: StorageBase,
        files: Sequence[FileContent],
        buffers: Sequence[memoryview],
        *,
        threads: int,
        fsync: bool,
        sync_seconds: float = math.inf,
    ) -> None:
        """An fsync that takes longer than `sync_seconds` raises PatienceError."""
        self._storage = storage
        self._files = files
        self._fsync = fsync
        self._sync_seconds = sync_seconds
        self._ring = PieceRing([(file.size_bytes, file.fill) for file in files], buffers, threads)
        self._movers = Movers(threads, "checkpoint-writer")

    def wait_ready(self) -> None:
        """Wait until the buffers are full of generated content, before the measurement begins."""
        self._ring.wait_full()

    def write(self, done: Done) -> None:
        """Write all files, and call `done` after each; raises SpaceError, UserError.

        After an error, the incomplete file is removed.
        """
        try:
            for number, file in enumerate(self._files):
                try:
                    done(number, self._write(file))
                except OSError as error:
                    raise explained(error, file.path, file.size_bytes) from error
        finally:
            self._movers.close()
            self._ring.close()

    def _write(self, file: FileContent) -> Columns:
        self._movers.begin()
        writer = self._storage.create(file.path)

        def work(_: int, share: Columns) -> None:
            for data, offset in self._ring.pieces(share):
                began_ns = time.monotonic_ns()
                writer.write_at(data, offset)
                add_call(share, began_ns, len(data))

        try:
            self._movers.run(work, self._ring.close)
            moved_ns = synced_ns = time.monotonic_ns()
            if self._fsync:
                within(self._sync_seconds, writer.sync, f"fsync of {file.path}")
                synced_ns = time.monotonic_ns()
            writer.commit()
        except PatienceError:
            raise  # removing a file of a storage that hangs would hang, too
        except BaseException:
            writer.discard()
            raise
        return self._movers.columns(moved_ns, synced_ns)


def explained(error: OSError, path: str, size_bytes: int) -> UserError:
    """Return the error to report when a file of a checkpoint can't be written; `size_bytes` 0: size unknown."""
    if error.errno in NO_SPACE:
        wants = f"needs {size_bytes} bytes" if size_bytes else "could not be written"
        return SpaceError(
            f"{no_space(error)}: checkpoint {path} {wants}; free some space or set "
            "checkpoint.checkpoint_folder to another disk"
        )
    return UserError(
        f"checkpoint {path} can't be written: {error.strerror or error}; set "
        "checkpoint.checkpoint_folder to a writable folder"
    )
