"""A run that writes and reads checkpoints, checked and ready: everything a rank needs, made once on rank 0."""

from __future__ import annotations

from dataclasses import dataclass, replace

from datagen.storage.storage_base import StorageSpec
from datagen.withheld import public_text
from dlemu.checkpoints.checkpoint_plan import CheckpointPlan
from dlemu.checkpoints.file_content import FileContent, FileNumber, content_of
from dlemu.checkpoints.file_layout import FileLayout
from dlemu.checkpoints.read_files import FileToRead
from dlemu.checkpoints.stored import StoredNote, folder_of
from dlemu.checkpoints.write_files import FileToWrite
from dlemu.config.schema import Checkpoint
from dlemu.runner.job import Job


@dataclass(frozen=True, kw_only=True)
class ReadSource:
    """A checkpoint that is to be read."""

    checkpoint: int
    plan: CheckpointPlan
    """Who wrote it."""
    settings: Checkpoint
    seed: int
    known: bool
    """Its bytes are known: dlemu wrote it."""


@dataclass(frozen=True, kw_only=True)
class CheckpointJob(Job):
    """The complete description of a run of checkpoints. The seed is of the bytes it writes."""

    plan: CheckpointPlan
    token: str = ""
    """Name of an empty file that rank 0 left in the checkpoint folder: who sees it shares the folder."""
    replaced: tuple[int, ...] = ()
    """Checkpoints of an earlier run, of the same kind, that make room before anything is measured."""
    sources: tuple[ReadSource, ...] = ()
    """What is read, in order."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers must know, as sentences."""

    @property
    def settings(self) -> Checkpoint:
        """The settings of checkpoints."""
        return self.workload.checkpoint

    @property
    def writes(self) -> int:
        """Checkpoints to be written."""
        return max(0, self.settings.num_checkpoints_write)

    @property
    def storage_spec(self) -> StorageSpec:
        """The storage as checkpoints use it."""
        direct = self.settings.odirect
        return replace(super().storage_spec, direct=direct, direct_writes=direct)

    @property
    def kept(self) -> int:
        """Most complete checkpoints that are in the folder at the end."""
        return min(self.writes, self.settings.keep_last or self.writes)

    @property
    def longest_wait_seconds(self) -> float:
        """How long a rank waits for the others' checkpoint: one slower than 10 MB/s a rank is taken to hang."""
        return max(self.workload.timeout_seconds, self.largest_rank_bytes / 10e6)

    @property
    def rank_bytes(self) -> tuple[int, ...]:
        """Bytes of each rank's files."""
        return self.plan.rank_bytes

    @property
    def largest_rank_bytes(self) -> int:
        """Bytes of the files of the rank that has most."""
        return max(self.rank_bytes)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one checkpoint, all ranks."""
        return sum(self.rank_bytes)

    def folder_of(self, checkpoint: int) -> str:
        """Return where a checkpoint lies."""
        return folder_of(self.settings.checkpoint_folder, checkpoint)

    def note(self, checkpoint: int, hosts: int) -> StoredNote:
        """Return what is beside a checkpoint of this run until it is complete."""
        return StoredNote(
            seed=self.seed,
            checkpoint=checkpoint,
            ranks=self.ranks,
            hosts=hosts,
            bytes=self.checkpoint_bytes,
            model=self.workload.model,
            settings=replace(self.settings, checkpoint_folder=public_text(self.settings.checkpoint_folder)),
        )

    def files_to_write(self, rank: int, checkpoint: int) -> list[FileToWrite]:
        """Return what a rank of the run writes of a checkpoint, in order."""
        own = self.plan.ranks[rank]
        return [
            FileToWrite(
                path=f"{self.folder_of(checkpoint)}/{layout.path}",
                content=content_of(layout, self.settings, self.seed, FileNumber(checkpoint, own, file)),
            )
            for file, layout in enumerate(self.plan.files(own))
        ]

    def files_to_read(self, rank: int, source: ReadSource, ranks_per_host: int) -> list[FileToRead]:
        """Return what a rank of the run reads of a checkpoint: its own files, another's, or a share of all."""
        if self.settings.reshard:
            return list(self._share(rank, source))
        shift = ranks_per_host if self.settings.recovery_rank_shift else 0
        read = self.plan.ranks[(rank + shift) % self.ranks]
        return [
            self._to_read(source, read, file, layout, 0, layout.size_bytes)
            for file, layout in enumerate(source.plan.files(read))
        ]

    def _share(self, rank: int, source: ReadSource) -> list[FileToRead]:
        """Return one of `ranks` equal stretches of all files of a checkpoint put one behind the other."""
        files = [
            (writer, file, layout)
            for writer in source.plan.ranks
            for file, layout in enumerate(source.plan.files(writer))
        ]
        total = sum(layout.size_bytes for _, _, layout in files)
        # Whole pieces: what is read past the page cache begins at a multiple of 4096 in its file.
        begin, end = (total * part // self.ranks for part in (rank, rank + 1))
        found, start = [], 0
        for writer, file, layout in files:
            first, last = (_aligned(min(max(at - start, 0), layout.size_bytes), layout) for at in (begin, end))
            if first < last:
                found.append(self._to_read(source, writer, file, layout, first, last))
            start += layout.size_bytes
        return found

    def _to_read(
        self, source: ReadSource, writer: int, file: int, layout: FileLayout, begin: int, end: int
    ) -> FileToRead:
        number = FileNumber(source.checkpoint, writer, file)
        content: FileContent = content_of(layout, source.settings, source.seed, number)
        path = f"{self.folder_of(source.checkpoint)}/{layout.path}"
        return FileToRead(path=path, content=content, begin=begin, end=end, checked=source.known)


def _aligned(offset: int, layout: FileLayout) -> int:
    """Return the multiple of 4096 below an offset, but the file's end where it is that."""
    return offset if offset == layout.size_bytes else offset // 4096 * 4096
