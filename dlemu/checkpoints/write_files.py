"""Writing a rank's files of one checkpoint: content is generated ahead; write calls and fsync are timed separately."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Sequence

from datagen.errors import SpaceError, UserError, no_space
from datagen.storage.storage_base import StorageBase
from dlemu.checkpoints.file_content import FileContent
from dlemu.checkpoints.movers import Columns, Done, Movers
from dlemu.checkpoints.piece_ring import PieceRing
from dlemu.config.schema import Checkpoint
from dlemu.ranks import PatienceError, within


class CheckpointWriter:
    """Writes the files of one checkpoint, one after another, each with several threads.

    Content generation begins with the constructor. Each file appears under its name when it is complete.
    """

    def __init__(
        self,
        storage: StorageBase,
        files: Sequence[FileContent],
        buffers: Sequence[memoryview],
        settings: Checkpoint,
        sync_seconds: float = math.inf,
    ) -> None:
        """An fsync that takes longer than `sync_seconds` raises PatienceError."""
        self._storage, self._files, self._fsync, self._sync_seconds = storage, files, settings.fsync, sync_seconds
        self._ring = PieceRing([(file.size_bytes, file.fill) for file in files], buffers, settings.writers)
        self._movers = Movers(settings.writers, "checkpoint-writer")

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
        with self._movers.measured() as columns:
            writer = self._storage.create(file.path)

            def work(_: int, share: Columns) -> None:
                for data, offset in self._ring.pieces(share):
                    began_ns = time.monotonic_ns()
                    writer.write_at(data, offset)
                    share["call_ns"] += time.monotonic_ns() - began_ns
                    share["bytes"] += len(data)

            try:
                self._movers.run(work, columns, self._ring.close)
                if self._fsync:
                    within(self._sync_seconds, writer.sync, f"fsync of {file.path}")
                    columns["synced_ns"] = time.monotonic_ns()
                writer.commit()
            except PatienceError:
                raise  # removing a file of a storage that hangs would hang, too
            except BaseException:
                writer.discard()
                raise
        return columns


def explained(error: OSError, path: str, size_bytes: int = 0) -> UserError:
    """Return the error to report when the storage refuses a file of a checkpoint; `size_bytes` 0: size unknown."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needs = f"needs {size_bytes} bytes" if size_bytes else "could not be written"
        return SpaceError(
            f"{no_space(error)}: checkpoint {path} {needs}; free some space or set checkpoint.checkpoint_folder to "
            "another disk"
        )
    return UserError(
        f"{path} can't be written, removed or accessed: {error.strerror or error}; see `dmesg` and what else uses the "
        "folder, or set checkpoint.checkpoint_folder to another one"
    )
