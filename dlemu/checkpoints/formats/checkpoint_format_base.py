"""The interface of a checkpoint's format: where in each file its tensors and literal bytes (headers, padding) are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dlemu.checkpoints.shards import Shard, Tensor

if TYPE_CHECKING:  # a plan finds its format
    from dlemu.checkpoints.checkpoint_plan import CheckpointPlan


@dataclass(frozen=True)
class FileLayout:
    """One file of a checkpoint: literals and tensors cover it without gaps."""

    path: str
    """Relative to the checkpoint's folder."""
    size_bytes: int
    literals: tuple[tuple[int, bytes], ...]
    """(offset, bytes) of everything that is no tensor: headers, names, padding; sorted by offset."""
    tensors: tuple[tuple[int, Tensor], ...]
    """(offset, tensor), sorted by offset; `FileContent` generates the bytes."""

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.bytes for _, tensor in self.tensors)


class LayoutBuilder:
    """Builds a layout by appending literals and tensors."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._literals: list[tuple[int, bytes]] = []
        self._tensors: list[tuple[int, Tensor]] = []

    def literal(self, data: bytes) -> None:
        """Append bytes; they are merged with a literal right before."""
        if self._literals and self._literals[-1][0] + len(self._literals[-1][1]) == self.size_bytes:
            offset, before = self._literals.pop()
            self._literals.append((offset, before + data))
        elif data:
            self._literals.append((self.size_bytes, data))
        self.size_bytes += len(data)

    def tensor(self, tensor: Tensor) -> None:
        """Append a tensor."""
        self._tensors.append((self.size_bytes, tensor))
        self.size_bytes += tensor.bytes

    def layout(self, path: str) -> FileLayout:
        """Return the finished layout."""
        return FileLayout(path, self.size_bytes, tuple(self._literals), tuple(self._tensors))


class CheckpointFormat(Protocol):
    """A file format; its module has a class `Format`, made without arguments."""

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        """Return the files that one of the job's ranks writes, in the order in which it writes them.

        No two ranks write the same file. This is pure arithmetic: no heavy imports, no files opened.
        """
        ...


class OneFilePerShard:
    """A format that stores each shard in a file of its own; subclasses implement `layout`."""

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        """Return the rank's files."""
        return tuple(self.layout(shard) for shard in plan.shards(rank))

    def layout(self, shard: Shard) -> FileLayout:
        """Return the layout of one shard's file."""
        raise NotImplementedError  # each format that derives from it has its own
