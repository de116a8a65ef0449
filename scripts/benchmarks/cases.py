"""The workloads that are compared with plain reads and a peer: each format at its real record size (cases.yaml)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True, kw_only=True)
class Case:
    """A dataset, which is in the page cache, and how it is read, without computation."""

    workload: str = "default"
    """The workload whose columns are read, if the format has columns."""
    format: str
    files: int
    samples_per_file: int = 1
    record_bytes: int = 0
    """0 for the sum of the workload's columns."""
    resize_bytes: int = 0
    batch_size: int
    read_threads: int
    loader: str = "pytorch"
    peer_loader: str = ""
    """The peer's loader, if not the same."""
    epochs: int
    """Epochs of the longer run. The shorter one has two; the difference does not include start-up."""
    peer_epochs: int = 0
    """Epochs of the peer's longer run, if it would take hours for as many as dlemu's; 0 for as many."""
    quick_files: int = 8
    peer_speed: float = 1.0
    """Lower bound of samples/s relative to the peer's."""
    peer_cost: float | None = None
    """Upper bound of CPU per GB relative to the peer's; None for no bound."""
    plain_speed: float | None = None
    """Lower bound of samples/s relative to a plain read of the same bytes."""
    plain_cost: float | None = None
    """Upper bound of CPU per GB relative to a plain read of the same files."""
    peer_making: float | None = None
    """Lower bound of datagen's MB/s relative to the peer's; None if another case makes the same files."""
    making_files: int = 0
    """Number of files to make for that, if those to read are too few or too many; 0 for the same number."""

    @property
    def reads_into_batch(self) -> bool:
        """Whether each file is read as a whole into its slot of a batch."""
        return self.loader == "pytorch" and self.samples_per_file == 1 and not self.resize_bytes

    def dataset(self, quick: bool) -> dict[str, int | str]:
        """Return the settings of section `dataset`, which are the same for dlemu and the peer."""
        counts: dict[str, int | str] = {
            "format": self.format,
            "num_files_train": self.quick_files if quick else self.files,
            "num_samples_per_file": min(self.samples_per_file, 500) if quick else self.samples_per_file,
        }
        if not self.record_bytes:
            return counts
        return counts | {
            "record_length_bytes": min(self.record_bytes, 1_000_000) if quick else self.record_bytes,
            "record_length_bytes_resize": self.resize_bytes,
        }


_YAML = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
CASES = {name: Case(**fields) for name, fields in _YAML.items()}
"""Name -> case."""
