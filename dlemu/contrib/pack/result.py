"""The result of `dlemu pack`, pack.json: rates, CPU and bottleneck of each point; docs/packing.md describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dlemu.metrics.findings import LimitedBy
from dlemu.results.answer_files import ANSWER_VERSION

PACK = "pack.json"
What = Literal["storage", "host CPU", "processes", "images"]
PackLimit = LimitedBy[What]
"""What limited a packing. `processes`: cores and storage had capacity for more; `images`: too few for the processes."""


@dataclass(frozen=True)
class PackShares:
    """How the processes spent their time, in percent of processes x seconds; the parts add up to 100."""

    reading: float
    """Blocked in reads, with nothing else to do."""
    computing: float
    """Running on a core: decoding, rescaling, encoding, copying."""
    wanting_core: float
    """Ready to compute, but waiting for a core."""
    writing: float
    """Blocked in writes and fsync."""
    idle: float
    """Without an image, because none was left."""


@dataclass(frozen=True, kw_only=True)
class PackDevice:
    """Activity of the devices behind source and target during the packing, by the kernel's counters."""

    read_mb_per_second: float | None = None
    write_mb_per_second: float | None = None
    mean_depth: float | None = None
    busy_percent: float | None = None


@dataclass(frozen=True, kw_only=True)
class PackFigures:
    """Amounts, rates and bottleneck of one packing. MB are 1e6 bytes."""

    images: int
    """Images packed by this run."""
    kept_images: int = 0
    """Images packed earlier, by an interrupted run that this one resumed."""
    processes: int
    files: int
    images_per_file: int
    seconds: float
    """From the moment when all processes were ready until the last byte was on the device."""
    images_per_second: float
    read_bytes: int
    """Bytes of the images' files."""
    written_bytes: int
    read_mb_per_second: float
    write_mb_per_second: float
    from_storage_percent: float | None = None
    """Share of the bytes read that came from storage, by the kernel's accounting; None where unknown."""
    cpu_seconds: float
    """CPU time of all packing processes."""
    cpu_percent: float
    """Mean CPU use of the packing processes, in percent of all cores."""
    cpu_seconds_per_gb: float
    """CPU time per 1e9 bytes read."""
    host_busy_percent: float | None = None
    """Mean CPU use of all processes of the host, in percent of all cores."""
    shares: PackShares
    device: PackDevice = PackDevice()
    limited_by: PackLimit
    train: str = ""
    """The command that trains on the packed set."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PackQuestion:
    """The settings that were given."""

    overrides: tuple[str, ...]
    settings_digest: str
    """Of all settings, those in the workload's file included."""


@dataclass(frozen=True, kw_only=True)
class PackPoint:
    """One packing, alone or as a point of a sweep."""

    settings: dict[str, str]
    """Key -> value, for the keys with several values."""
    folder: str
    """Name of its subfolder in the folder of results."""
    figures: PackFigures | None = None
    failure: str | None = None
    exit_status: int = 0


@dataclass(frozen=True, kw_only=True)
class PackAnswer:
    """The whole result."""

    schema_version: int = ANSWER_VERSION
    complete: bool
    question: PackQuestion
    points: tuple[PackPoint, ...]
    target: str = ""
    """Folder of the packed files; empty if a sweep removed them."""

    @property
    def exit_status(self) -> int:
        """0 if every point was packed; else 3, or for a single packing the status of its failure."""
        failed = [point.exit_status for point in self.points if point.failure is not None]
        return 0 if not failed else failed[0] if len(self.points) == 1 else 3
