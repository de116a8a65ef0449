"""Synchronous and asynchronous saving (`begin_saving`), and the checkpoints of a training run (`TrainingSaver`).

With `checkpoint.asynchronous` the emulated accelerators stall only for a snapshot into host memory, which is a sleep. A
thread then writes it while training goes on. The next checkpoint waits until the previous one is written:

    synchronous    train | write 1, fsync | train | write 2, fsync |
    asynchronous   train | snapshot 1 | train, write 1, fsync | wait for 1 | snapshot 2 | train, write 2, fsync |
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property

from datagen.storage.storage_base import StorageBase
from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.file_content import files_of
from dlemu.checkpoints.io_rows import SavedCheckpoint
from dlemu.checkpoints.movers import make_buffers
from dlemu.checkpoints.shards import FileLayout, Tensor, file_layout
from dlemu.checkpoints.stored import block_name, user_error
from dlemu.checkpoints.write_files import CheckpointWriter
from dlemu.config.schema import Checkpoint, Model
from dlemu.machine.clock import Clock
from dlemu.ranks import Comm
from dlemu.ranks.process_control import in_thread


def begin_saving(
    settings: Checkpoint, comm: Comm, clock: Clock, rank_bytes: int, write: Callable[[int], None]
) -> tuple[int, Future[int]]:
    """Save one checkpoint; return the time (ns) at which training resumes, and a future of the time it was written.

    `write` gets the time at which it begins. With `asynchronous`, training resumes after a snapshot of `rank_bytes`,
    the rank's part, and a thread calls `write`, whose errors the future raises. Collective.
    """

    def timed_write(begin_ns: int) -> int:
        write(begin_ns)
        return clock.now_ns()

    if not settings.asynchronous:
        written = Future[int]()
        written.set_result(timed_write(clock.now_ns()))
        return written.result(), written
    clock.sleep_until(clock.now_ns() + round(rank_bytes / settings.snapshot_gb_per_second))  # GB/s are bytes per ns
    released_ns = comm.all_reduce_max(clock.now_ns())
    return released_ns, in_thread(lambda: timed_write(released_ns), "checkpoint-drain")


@dataclass
class TrainingSaver:
    """Saves one rank's checkpoints of a training run. To create it, `save` and `finish` are collective."""

    settings: Checkpoint
    model: Model
    storage: StorageBase
    comm: Comm
    clock: Clock
    seed: int = 0  # of the content
    sync_seconds: float = math.inf  # timeout of an fsync

    def __post_init__(self) -> None:
        self._layouts = self._layouts_of_rank()
        self._total_bytes = sum(self.comm.gather(_bytes_of(self._layouts)) or ())  # only rank 0 reports them
        self._in_progress: tuple[SavedCheckpoint, Future[int]] | None = None  # the future: when it was written, ns

    def save(self, epoch: int, block: int) -> tuple[int, list[SavedCheckpoint]]:
        """Save the checkpoint after a block of steps; return when training resumes (ns), and the complete checkpoint.

        That is this one or, with `asynchronous`, the previous one: the list is empty for the first.
        Raises SpaceError if the disk is full, UserError if the folder can't be written.
        """
        started_ns = self.comm.all_reduce_max(self.clock.now_ns())
        complete = self.finish()
        released_ns, written = begin_saving(
            self.settings, self.comm, self.clock, _bytes_of(self._layouts), lambda _: self._write(epoch, block)
        )
        saved = SavedCheckpoint(
            epoch=epoch,
            block=block,
            bytes=self._total_bytes,
            started_ns=started_ns,
            ended_ns=0,
            released_ns=released_ns if self.settings.asynchronous else None,
        )
        self._in_progress = saved, written
        if not self.settings.asynchronous:
            complete = self.finish()
            released_ns = complete[0].ended_ns
        return released_ns, complete

    def finish(self) -> list[SavedCheckpoint]:
        """Wait for the checkpoint in progress and return it, or [] without one. Raises as `save` does."""
        if self._in_progress is None:
            return []
        saved, written = self._in_progress
        self._in_progress = None
        return [replace(saved, ended_ns=self.comm.all_reduce_max(written.result()))]

    @cached_property
    def _buffers(self) -> list[memoryview]:
        largest = max((layout.size_bytes for layout in self._layouts), default=0)
        return make_buffers(self.settings.writers, self.settings.transfer_size, largest)

    def _layouts_of_rank(self) -> tuple[FileLayout, ...]:
        """Return the rank's files: its shard of a model with layers, else all, on rank 0 or on every rank (`type`)."""
        rank = self.comm.rank
        if self.model.has_layers:
            plan = plan_checkpoint(self.model, self.settings, self.comm.size)
            return plan.files(plan.ranks[rank])
        if rank > 0 and self.settings.type != "all_ranks":
            return ()
        return (file_layout(f"rank_{rank}.ckpt", [Tensor("model", (self.model.model_size_bytes,), "int8")]),)

    def _write(self, epoch: int, block: int) -> None:
        if not self._layouts:
            return
        settings = self.settings
        folder = f"{settings.checkpoint_folder.rstrip('/')}/{block_name(epoch, block)}"
        # The number in the content's stamps has 20 bits: it repeats after 1024 epochs, or 1024 blocks of an epoch.
        number = (epoch & 0x3FF) << 10 | block & 0x3FF
        files = files_of(folder, self._layouts, settings, self.seed, checkpoint=number, rank=self.comm.rank)
        try:
            self.storage.make_folder(folder)
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    self.storage.remove(file.path)  # of an earlier run; there may be no space for both
        except OSError as error:
            raise user_error(error, folder) from error
        writer = CheckpointWriter(self.storage, files, self._buffers, settings, self.sync_seconds)
        writer.write(lambda _number, _columns: None)


def _bytes_of(layouts: Sequence[FileLayout]) -> int:
    return sum(layout.size_bytes for layout in layouts)
