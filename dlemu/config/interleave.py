"""How `tf.data` takes the records of several files in turn, and how far it reads ahead for that."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from datagen.layout import nominal_sample_bytes
from datagen.spec import DatasetSpec
from dlemu.config.schema import Reader

_BUFFER_BYTES = 256 << 10
"""What tf.data.TFRecordDataset reads at a time where `reader.transfer_size` does not say."""
_TURN_BYTES = 2 << 20
"""Of records in a turn. Each turn wakes another thread of tf.data's: at records of 100 kB turns of one transfer have a
fifth less speed than those of 1 MiB, and those a tenth less than these; 4 MiB gain nothing, and of each file two turns
lie in memory."""


@dataclass(frozen=True, kw_only=True)
class Interleave:
    """Several files' turns."""

    files: int
    """Read at a time."""
    block_length: int
    """Records to take of a file before the next one's turn."""
    files_ahead: int
    """Begun before it is their turn, beside those read at a time."""

    @property
    def ready_per_file(self) -> int:
        """Most records of a file that wait for their turn: two blocks, as tf.data has it by default."""
        return 2 * self.block_length


def interleaved(reader: Reader, dataset: DatasetSpec) -> Interleave:
    """Return the turns of a workload's files.

    tf.data would always begin twice as many files as are read at a time. Here only files that are over in one turn
    have others begun ahead, so that no thread is idle at each file's end. Of longer files less is then read before a
    run's counted steps begin, which flatters a short epoch.
    """
    files = max(1, reader.read_threads)
    block_length = max(1, _TURN_BYTES // max(1, nominal_sample_bytes(dataset)))
    in_one_turn = dataset.num_samples_per_file <= block_length
    return Interleave(files=files, block_length=block_length, files_ahead=2 * files if in_one_turn else 0)


def samples_read_ahead(reader: Reader, dataset: DatasetSpec) -> int:
    """Return the samples that the interleave and its files' readers have read before anybody asks for them.

    Of each file begun: the records that wait, one under way, and those of the reader's buffer.
    """
    turns = interleaved(reader, dataset)
    buffered = ceil((reader.transfer_size or _BUFFER_BYTES) / max(1, nominal_sample_bytes(dataset)))
    if turns.files == 1:  # flat_map, not interleave
        return min(dataset.num_samples_per_file, buffered)
    begun = turns.files + turns.files_ahead
    return begun * min(dataset.num_samples_per_file, turns.ready_per_file + 1 + buffered)
