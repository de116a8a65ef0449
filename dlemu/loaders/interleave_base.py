"""Reading several files of a rank in turn, each as a stream from its beginning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Interleave:
    """How many files a rank reads as streams at a time, and how they take turns."""

    files: int
    """Files read at a time."""
    block_length: int = 1
    """Records to take from a file before it is the next one's turn."""
    files_ahead: int = 0
    """Further files that are begun before it is their turn."""

    @property
    def ready_per_file(self) -> int:
        """The most records of a file that wait for their turn: two blocks, tf.data's default."""
        return 2 * self.block_length
