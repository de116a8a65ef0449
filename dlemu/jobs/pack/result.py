"""pack.json: what packing took, at each point; docs/packing.md describes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlemu.jobs.pack.limits import PackLimit
from dlemu.results.answer_files import ANSWER_VERSION

PACK = "pack.json"


@dataclass(frozen=True, kw_only=True)
class PackShares:
    """Where the processes' time went, in percent of processes x seconds; they add up to 100."""

    reading: float
    """Blocked in reads, with nothing else to do."""
    computing: float
    """On a core: decoding, rescaling, encoding, copying."""
    wanting_core: float
    """Ready to compute, but other threads had the cores."""
    writing: float
    """Blocked in writes and in bringing them to the device."""
    idle: float
    """No image was left for the process."""


@dataclass(frozen=True, kw_only=True)
class PackDevice:
    """What the devices behind source and target did meanwhile, by the kernel's counters."""

    read_mb_per_second: float | None = None
    write_mb_per_second: float | None = None
    mean_depth: float | None = None
    busy_percent: float | None = None


@dataclass(frozen=True, kw_only=True)
class PackFigures:
    """What one packing took. MB are 1e6 bytes."""

    images: int
    """Packed now."""
    kept_images: int = 0
    """Packed before, by an interrupted packing that this one went on with."""
    skipped: int = 0
    """Images that could not be decoded."""
    skipped_paths: tuple[str, ...] = ()
    """The first of them, with the reason."""
    processes: int
    files: int
    images_per_file: int
    seconds: float
    """From the moment when all processes were ready to when the last byte was on the device."""
    images_per_second: float
    read_bytes: int
    """Of the images' files."""
    written_bytes: int
    read_mb_per_second: float
    write_mb_per_second: float
    from_storage_percent: float | None = None
    """Share of the bytes read that the storage served, by the kernel's account of the processes; None where unknown."""
    cpu_seconds: float
    """Of all processes."""
    cpu_percent: float
    """Of all cores, for as long as it took."""
    cpu_seconds_per_gb: float
    """For each 1e9 bytes read."""
    host_busy_percent: float | None = None
    """Of all cores, by anyone."""
    shares: PackShares
    device: PackDevice = PackDevice()
    limited_by: PackLimit
    train: str = ""
    """The command that trains on what was packed."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PackQuestion:
    """The question."""

    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PackPoint:
    """One packing of several."""

    settings: dict[str, str]
    """Key -> value, of the keys that have several."""
    folder: str
    """Where it is in the folder of the answer."""
    figures: PackFigures | None = None
    failure: str | None = None
    exit_status: int = 0


@dataclass(frozen=True, kw_only=True)
class PackAnswer:
    """All points."""

    schema_version: int = ANSWER_VERSION
    complete: bool
    question: PackQuestion
    points: tuple[PackPoint, ...]
    target: str = ""
    """Where the packed files are; empty where points of a sweep were removed again."""
    issues: tuple[str, ...] = field(default=())

    @property
    def exit_status(self) -> int:
        """Return 0 when every point was packed, else what the first failure calls for: 3, or 2 for a user's mistake."""
        failed = [point.exit_status for point in self.points if point.failure is not None]
        return 0 if not failed else failed[0] if len(self.points) == 1 else 3
