"""Before the first trial: checks the launcher, and reads the dataset briefly.

Also what a search or a sweep reports while it goes on, in addition to the events of any list of runs.
"""

from __future__ import annotations

import random
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from datagen.buffers import AlignedBuffer
from datagen.errors import UserError
from datagen.fetch import Fetcher, FetchSpec
from dlemu.config.schema import Workload
from dlemu.ranks import detect_launcher
from dlemu.results.kinds import Kind
from dlemu.runner.cold import Treatment
from dlemu.runner.run_list import RunBegan, RunEnded, RunsPlanned
from dlemu.studies.answers import SizeAnswer, SweepAnswer, SweepPoint, Trial

PROBE_SECONDS, ONE_READER_SECONDS = 3.0, 1.5  # enough for a first guess: the trials decide
PROBE_THREADS = 16  # in flight, they reach most of a drive's speed; the trials find the rest


def check_launcher(command: str, launcher: str) -> None:
    """Raise UserError for a launcher without {ranks}, and when this process was itself started by a launcher."""
    if launcher and "{ranks}" not in launcher:
        raise UserError(
            f"launcher={launcher!r} does not say where the count goes: wanted {{ranks}} in it, as in "
            'launcher="mpirun -np {ranks} --hostfile hosts"'
        )
    try:
        shlex.split(launcher.format(ranks=1))
    except (ValueError, LookupError, AttributeError) as error:  # a quote that is not closed, other words in braces
        raise UserError(f"launcher={launcher!r} is no command: {error}") from None
    if detect_launcher() != "none":
        raise UserError(
            f"dlemu {command} was started by mpirun, srun or torchrun: start it once, without a launcher; it "
            f'starts the ranks of each run itself, with launcher="mpirun -np {{ranks}} ..." on several hosts'
        )


@dataclass(frozen=True)
class Child:
    """A run that a study starts as a command of its own."""

    kind: Kind
    workload: Workload
    words: tuple[str, ...]
    """Options and overrides."""
    launcher: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, kind: Kind, workload: Workload, words: Sequence[str], *, config_dir: str | None, launcher: str = ""
    ) -> Self:
        """Return a run with these overrides."""
        options = ("--config-dir", config_dir) if config_dir else ()
        return cls(kind, workload, (*options, *words), tuple(shlex.split(launcher.format(ranks=workload.ranks))))


@dataclass(frozen=True, kw_only=True)
class SearchBegan:
    """The dataset is checked and the storage is probed: the first trial follows."""

    workload: Workload
    page_cache: Treatment
    total_bytes: int
    """Size of the dataset."""
    enough_for: int
    """Accelerators that the dataset has enough samples for."""
    others: str
    """Of other programs that use the cores, as a sentence; empty where they do not."""
    probe_mb_per_second: float
    mb_per_accelerator: float
    """Read rate that one accelerator needs, from the workload's nominal sizes."""
    expected: int
    """The largest number of accelerators that the model of docs/prediction.md expects to pass."""


SizingEvent = RunsPlanned | SearchBegan | RunBegan | RunEnded[Trial, SizeAnswer] | RunEnded[SweepPoint, SweepAnswer]
OnEvent = Callable[[SizingEvent], None]


def probe_mb_per_second(
    spec: FetchSpec, *, seconds: float = PROBE_SECONDS, threads: int = PROBE_THREADS, from_end: bool = False
) -> float:
    """Return MB/s (1e6 bytes) of `threads` threads that read files in random order for `seconds`.

    They use the same read code as training, with nothing else going on. No file is read twice, as the page cache would
    serve it; `from_end` goes through the same order backwards, so that a second probe reads other files.
    """
    samples = spec.layout.num_samples_per_file
    batch = min(samples, 64)
    files = list(range(spec.layout.num_files))
    random.Random(0).shuffle(files)
    to_read = iter(reversed(files) if from_end else files)  # a list's iterator may be shared by threads
    reads: list[tuple[float, int]] = []
    errors: list[BaseException] = []
    started = time.monotonic()

    def read() -> None:
        try:
            slot_bytes = spec.slot_bytes(batch)
            buffer, fetcher = AlignedBuffer(slot_bytes), Fetcher(spec)
            while time.monotonic() < started + seconds and (file := next(to_read, None)) is not None:
                fetched = fetcher.fetch(range(file * samples, file * samples + batch), buffer.view(slot_bytes))
                reads.append((time.monotonic(), fetched.app_bytes))
            fetcher.close()
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(threads)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    if errors:
        raise errors[0]
    ended = max((when for when, _ in reads), default=started)
    return sum(read_bytes for _, read_bytes in reads) / 1e6 / max(ended - started, 1e-9)
