"""Checkpoints inside training: the model is written, fsynced and timed while the emulated accelerators stall.

With `checkpoint.asynchronous` they stall only for a snapshot into host memory (emulated by a sleep). A thread then
writes it while training goes on, and the next checkpoint waits for it.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from datagen.storage.storage_base import StorageBase
from dlemu.checkpoints.checkpoint_plan import CheckpointPlan, plan_checkpoint
from dlemu.checkpoints.file_content import FileNumber, content_of
from dlemu.checkpoints.io_rows import SavedCheckpoint
from dlemu.checkpoints.piece_ring import make_buffers
from dlemu.checkpoints.shards import FileLayout, Tensor
from dlemu.checkpoints.stored import block_name
from dlemu.checkpoints.write_files import CheckpointWriter, Drain, FileToWrite, explained
from dlemu.config.schema import Checkpoint, Model
from dlemu.machine.clock import Clock
from dlemu.ranks import Comm


@dataclass
class TrainingSaver:
    """Saves one rank's checkpoints of a training run. All ranks must make the same calls (they are collective)."""

    settings: Checkpoint
    model: Model
    storage: StorageBase
    comm: Comm
    clock: Clock
    seed: int = 0
    """Seed of the content."""
    sync_seconds: float = math.inf
    """Timeout of an fsync; for large checkpoints at least the time that their bytes take at 10 MB/s."""
    _in_progress: tuple[Drain, SavedCheckpoint] | None = field(default=None, init=False)
    """The asynchronous checkpoint that is being written; its `ended_ns` is not known yet."""

    def save(self, epoch: int, block: int) -> tuple[int, list[SavedCheckpoint]]:
        """Save the checkpoint after a block of steps; return the ns at which training goes on, and what was completed.

        That is this checkpoint, or with `asynchronous` the one before, if any. A model without layers is written by
        rank 0 or every rank (`checkpoint.type`), one with layers by every rank that has a part of it. Raises SpaceError
        if the disk is full, UserError if the folder can't be written.
        """
        started_ns = self.comm.all_reduce_max(self.clock.now_ns())
        saved = SavedCheckpoint(epoch=epoch, block=block, bytes=self.total_bytes, started_ns=started_ns, ended_ns=0)
        if not self.settings.asynchronous:
            self._write(epoch, block)
            ended_ns = self.comm.all_reduce_max(self.clock.now_ns())
            return ended_ns, [replace(saved, ended_ns=ended_ns)]
        complete = self.finish()
        begin_ns = self.clock.now_ns()
        own_bytes = sum(layout.size_bytes for layout in self._layouts)
        self.clock.sleep_until(begin_ns + round(own_bytes / self.settings.snapshot_gb_per_second))  # GB/s: bytes per ns
        released_ns = self.comm.all_reduce_max(self.clock.now_ns())

        def write() -> int:
            self._write(epoch, block)
            return self.clock.now_ns()

        self._in_progress = Drain(write), replace(saved, released_ns=released_ns)
        return released_ns, complete

    def finish(self) -> list[SavedCheckpoint]:
        """Wait for the asynchronous checkpoint in progress; return it, or []. Raises as `save` does."""
        in_progress, self._in_progress = self._in_progress, None
        if in_progress is None:
            return []
        drain, saved = in_progress
        return [replace(saved, ended_ns=self.comm.all_reduce_max(drain.wait()))]

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of one checkpoint over all ranks."""
        return sum(layout.size_bytes for rank in range(self.comm.size) for layout in self._layouts_of_rank(rank))

    @cached_property
    def _plan(self) -> CheckpointPlan:
        return plan_checkpoint(self.model, self.settings, self.comm.size)

    @cached_property
    def _layouts(self) -> tuple[FileLayout, ...]:
        return self._layouts_of_rank(self.comm.rank)

    @cached_property
    def _buffers(self) -> list[memoryview]:
        largest = max((layout.size_bytes for layout in self._layouts), default=0)
        return make_buffers(self.settings.writers, self.settings.transfer_size, largest)

    def _layouts_of_rank(self, rank: int) -> tuple[FileLayout, ...]:
        if self.model.has_layers:
            return self._plan.files(self._plan.ranks[rank])
        if rank > 0 and self.settings.type != "all_ranks":
            return ()
        size_bytes = self.model.model_size_bytes
        return (FileLayout(f"rank_{rank}.ckpt", size_bytes, (), ((0, Tensor("model", (size_bytes,), "int8")),)),)

    def _write(self, epoch: int, block: int) -> None:
        if not self._layouts:
            return
        folder = f"{self.settings.checkpoint_folder.rstrip('/')}/{block_name(epoch, block)}"
        files = [
            FileToWrite(
                path=f"{folder}/{layout.path}",
                content=content_of(
                    layout, self.settings, self.seed, FileNumber(_number(epoch, block), self.comm.rank, number)
                ),
            )
            for number, layout in enumerate(self._layouts)
        ]
        try:
            self.storage.make_folder(folder)
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    self.storage.remove(file.path)  # an earlier run's file: there may be no space for both
        except OSError as error:
            raise explained(error, folder, 0) from error
        writer = CheckpointWriter(
            self.storage,
            files,
            self._buffers,
            threads=self.settings.writers,
            fsync=self.settings.fsync,
            sync_seconds=max(self.sync_seconds, sum(file.size_bytes for file in files) / 10e6),  # slower: it hangs
        )
        writer.wait_ready()
        writer.write(lambda _number, _moved: None)


def _number(epoch: int, block: int) -> int:
    """Return a 20-bit number for a checkpoint of training; it repeats after 1024 epochs, or 1024 blocks of an epoch."""
    return (epoch & 0x3FF) << 10 | block & 0x3FF
