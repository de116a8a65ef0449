"""The result of `dlemu pack`, pack.json: rates, CPU and bottleneck of each point; docs/packing.md describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dlemu.results.answer_files import ANSWER_VERSION

PACK = "pack.json"
What = Literal["storage", "host CPU", "processes", "images"]
"""What can limit a packing. `processes`: cores and storage had capacity for more; `images`: too few for the processes.
"""
Confidence = Literal["high", "medium", "low"]
ADVICE = {
    "more_images": "use more images, fewer images per file (images_per_file), or fewer processes",
    "more_cores": "use more cores; smaller images, or encode=raw, need less CPU",
    "stop_other_programs": "other programs use most of the cores: stop them (top), or pack on an idle host",
    "raise_cpu_limit": "raise the CPU limit of this container or job (cgroup)",
    "use_free_cores": "use more processes: cores and storage were idle at times",
    "more_requests": "use more processes: the storage had few requests at a time",
    "faster_storage_to_read": "use faster storage for the images",
    "faster_storage_to_write": "use faster storage for the packed files, or smaller images",
}


@dataclass(frozen=True, kw_only=True)
class PackLimit:
    """What limited a packing."""

    what: What
    confidence: Confidence
    advice: str
    """What to do about it, a code of ADVICE."""


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

    @property
    def label(self) -> str:
        """Its settings as words; empty for a single packing."""
        return " ".join(f"{key}={value}" for key, value in self.settings.items())


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
