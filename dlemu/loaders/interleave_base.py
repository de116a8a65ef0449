"""How the files that a rank reads as streams take turns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Interleave:
    """How the files that a rank reads as streams take turns."""

    files: int
    """Read at a time."""
    block_length: int = 1
    """Records to take of a file before the next one's turn."""
    files_ahead: int = 0
    """Begun before it is their turn, beside those read at a time."""

    @property
    def ready_per_file(self) -> int:
        """Most records of a file that wait for their turn: two blocks, as tf.data has it by default."""
        return 2 * self.block_length
