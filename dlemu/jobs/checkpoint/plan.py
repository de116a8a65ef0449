"""The plan of a checkpoint run: everything a rank needs, made and checked once on rank 0, then sent to all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from datagen.storage.storage_base import StorageSpec
from datagen.withheld import public_text
from dlemu.checkpoints.checkpoint_plan import CheckpointPlan
from dlemu.checkpoints.file_content import FileContent, files_of
from dlemu.checkpoints.stored import StoredNote, folder_of
from dlemu.config.schema import Checkpoint
from dlemu.runner.job_kind import Job


@dataclass(frozen=True, kw_only=True)
class ReadSource:
    """A checkpoint to be read, as it was written."""

    checkpoint: int
    settings: Checkpoint
    seed: int
    content_known: bool  # dlemu wrote the checkpoint, so that its content can be checked


@dataclass(frozen=True, kw_only=True)
class CheckpointJob(Job):
    """The complete description of a checkpoint run; `seed` determines the content it writes."""

    plan: CheckpointPlan
    replaced: tuple[int, ...] = ()  # checkpoints of an earlier run, to be removed first
    sources: tuple[ReadSource, ...] = ()  # checkpoints to read, in order
    notes: tuple[str, ...] = ()  # sentences that a reader of the result must know

    @property
    def settings(self) -> Checkpoint:
        return self.workload.checkpoint

    @property
    def writes(self) -> int:
        return max(0, self.settings.num_checkpoints_write)

    @property
    def token_path(self) -> str:
        """Path of an empty file that rank 0 leaves before it writes: a host that sees it shares the folder."""
        return f"{self.settings.checkpoint_folder.rstrip('/')}/.dlemu-shared-{self.seed:012x}"

    @property
    def storage_spec(self) -> StorageSpec:
        """The storage, with O_DIRECT for reads and writes if `checkpoint.odirect` is set."""
        direct = self.settings.odirect
        return replace(super().storage_spec, direct=direct, direct_writes=direct)

    @property
    def kept(self) -> int:
        """Number of complete checkpoints left in the folder at the end."""
        return min(self.writes, self.settings.keep_last or self.writes)

    @property
    def timeout_seconds(self) -> float:
        """Timeout of an fsync, and of waiting for other ranks: below 10 MB/s a rank is taken to hang."""
        return max(self.workload.timeout_seconds, self.plan.sizes.largest_rank_bytes / 10e6)

    def folder_of(self, checkpoint: int) -> str:
        return folder_of(self.settings.checkpoint_folder, checkpoint)

    def note(self, checkpoint: int) -> StoredNote:
        """Return the note of a checkpoint of this run, marked incomplete."""
        return StoredNote(
            seed=self.seed,
            checkpoint=checkpoint,
            ranks=self.ranks,
            bytes=self.plan.sizes.bytes,
            model=self.workload.model,
            settings=replace(self.settings, checkpoint_folder=public_text(self.settings.checkpoint_folder)),
        )

    def files_to_write(self, rank: int, checkpoint: int) -> list[FileContent]:
        """Return the files that a rank of the run writes of a checkpoint, in order."""
        source = ReadSource(checkpoint=checkpoint, settings=self.settings, seed=self.seed, content_known=True)
        return self._files(self.plan.ranks[rank], source)

    def files_to_read(self, rank: int, source: ReadSource, ranks_per_host: int) -> list[FileContent]:
        """Return the files that a rank of the run reads: its own, or another host's rank's."""
        shift = ranks_per_host if self.settings.recovery_rank_shift else 0
        return self._files(self.plan.ranks[(rank + shift) % self.ranks], source)

    def _files(self, writer: int, source: ReadSource) -> list[FileContent]:
        """Return what a rank of the emulated job wrote, or writes, of a checkpoint."""
        folder, number = self.folder_of(source.checkpoint), source.checkpoint
        layouts = self.plan.files(writer)
        return files_of(folder, layouts, source.settings, source.seed, checkpoint=number, rank=writer)
