"""One file of a checkpoint, byte by byte, and how it is put together."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.checkpoints.shards import Tensor


@dataclass(frozen=True)
class FileLayout:
    """One file of a checkpoint, byte by byte: literals and tensors follow each other without a gap."""

    path: str
    """Below the checkpoint's own folder."""
    size_bytes: int
    literals: tuple[tuple[int, bytes], ...]
    """Offset and bytes of all that is no tensor (headers, names, padding), in order of the offsets."""
    tensors: tuple[tuple[int, Tensor], ...]
    """Offset of the first byte of each tensor, in order; their content is made by whoever writes the file."""

    @property
    def tensor_bytes(self) -> int:
        """Return the bytes of its tensors."""
        return sum(tensor.bytes for _, tensor in self.tensors)


class Pieces:
    """A file that is put together from its first byte on."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._literals: list[tuple[int, bytes]] = []
        self._tensors: list[tuple[int, Tensor]] = []

    def literal(self, data: bytes) -> None:
        """Add bytes that are no tensor's."""
        if self._literals and sum(map(len, self._literals[-1][1:])) + self._literals[-1][0] == self.size_bytes:
            offset, before = self._literals.pop()
            self._literals.append((offset, before + data))
        elif data:
            self._literals.append((self.size_bytes, data))
        self.size_bytes += len(data)

    def tensor(self, tensor: Tensor) -> None:
        """Add a tensor's bytes."""
        self._tensors.append((self.size_bytes, tensor))
        self.size_bytes += tensor.bytes

    def layout(self, path: str) -> FileLayout:
        """Return the file."""
        return FileLayout(path, self.size_bytes, tuple(self._literals), tuple(self._tensors))
