"""The workloads that are held beside plain reads and a peer: each format at its real record size (cases.yaml)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True, kw_only=True)
class Case:
    """One dataset and one way to read it. Nothing computes, and the dataset lies in the page cache."""

    workload: str = "default"
    """Whose columns are read, where the format has them."""
    format: str
    files: int
    samples_per_file: int = 1
    record_bytes: int = 0
    """0: as the workload's columns add up to."""
    resize_bytes: int = 0
    batch_size: int
    read_threads: int
    loader: str = "pytorch"
    peer_loader: str = ""
    """The peer's loader where it has not the one that dlemu uses; it is the same where this is empty."""
    epochs: int
    """Of the longer run; the shorter one has two, and their difference is free of start-up."""
    peer_epochs: int = 0
    """Of the peer's longer run, where so many would take it hours; 0: as many as dlemu's."""
    quick_files: int = 8
    peer_speed: float = 1.0
    """Least ratio of samples/s to the peer's."""
    peer_cost: float | None = None
    """Most ratio of CPU for each GB to the peer's; None: no bound."""
    plain_speed: float | None = None
    """Least ratio of samples/s to a plain read of the same bytes."""
    plain_cost: float | None = None
    """Most ratio of CPU for each GB to a plain read of the same files."""
    peer_making: float | None = None
    """Least ratio of MB/s of datagen to the peer's; None where another case makes the same."""
    making_files: int = 0
    """Files to make for that, where those to read are over in the time it takes to begin, or many; 0: as many."""

    @property
    def fills_places(self) -> bool:
        """Each file is read whole to its place in a batch."""
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


CASES = {name: Case(**words) for name, words in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()}
"""Name -> case."""
