"""What is known of a recorded job: record.json. It stays with whoever recorded; the recipe is what is sent on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dlemu.results.answer_files import ANSWER_VERSION, read_answer

RECORD = "record.json"
QUANTILES = 33  # steps of 3 %: the recipe is a short file that people read
_CACHED = 0.97
_COLD = 0.03
"""Shares of the bytes from memory beyond which a job was cached, or cold: metadata and read-ahead blur both."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Measured values: their mean, and their quantiles at equal steps of probability from 0 to 1."""

    mean: float
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float] | NDArray[np.float64]) -> Spread:
        """Return that of one or more values."""
        known = np.asarray(values, np.float64)
        steps = np.linspace(0, 1, QUANTILES)
        return cls(mean=float(known.mean()), quantiles=tuple(map(float, np.quantile(known, steps))))

    def at(self, share: float) -> float:
        """Return the value below which that share (0 to 1) lies, linear between quantiles."""
        return float(np.interp(share, np.linspace(0, 1, len(self.quantiles)), self.quantiles))

    def longer(self, by: float) -> Spread:
        """Return that of values which are all so much larger."""
        return Spread(mean=max(0.0, self.mean + by), quantiles=tuple(max(0.0, value + by) for value in self.quantiles))

    def scaled(self, mean: float) -> Spread:
        """Return the same shape about another mean."""
        factor = mean / self.mean if self.mean > 0 else 0.0
        return Spread(mean=mean, quantiles=tuple(value * factor for value in self.quantiles))


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Where a step's time went, in the mean, s. They add up to the step."""

    computing: float
    storage: float
    """Waiting for a batch whose worker was blocked, which is reading from the storage in most jobs."""
    cpu_queue: float
    """The trainer, or the worker of a batch that it waited for, wanted a core and had none."""
    preprocessing: float
    """Waiting for a batch whose worker computed: decoding, augmenting, and the CPU of reading."""
    hand_over: float
    """Waiting for a batch that was ready: from the worker to the trainer."""

    @property
    def step(self) -> float:
        return self.computing + self.waiting

    @property
    def waiting(self) -> float:
        return self.storage + self.cpu_queue + self.preprocessing + self.hand_over


@dataclass(frozen=True, kw_only=True)
class Saves:
    """Checkpoints that were written in the window."""

    count: int
    bytes: int
    """Of one, of all ranks."""
    seconds: float
    """How long the trainer stalled for one, in the mean."""
    batches_between: int | None
    """None: only between passes, or once."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How the job's loader was set."""

    iterable: bool
    workers: int
    prefetch: int
    """Batches a worker is ahead."""
    start_method: str
    pin: bool
    persistent: bool
    order: str
    """`shuffled`, `in order`, or `own` where the sampler does not show it."""
    samples: int | None
    """Of the dataset, where it says."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """The files that the job's samples come from."""

    folder: str
    format: str
    """dlemu's name of their format; empty for one that it does not know."""
    ending: str
    files: int
    bytes: int
    sizes: Spread
    """Of the files in the folder, bytes."""
    samples_per_file: float
    is_whole: bool
    """Every file of that ending in the folder is counted; false where that took too long."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What the rows say of the job's steady training: warm-up and evaluation left out. Times in s."""

    ranks: int
    ranks_that_read: Literal["all", "first"]
    """`first`: one reads for all, as Accelerate's dispatcher does."""
    loading: Loading
    batch_size: int
    """Samples of a step on one rank."""
    read_batch_size: int
    """Samples of a batch as its loader makes it: where one rank reads, those of all ranks or of one in turn."""
    batch_sizes: Spread | None
    """None: all alike but the last of a pass."""
    steps: int
    """Batches of a rank that are counted."""
    ready_steps: int
    """Of them, those whose batch was ready when the trainer requested it."""
    passes: int
    samples_per_second: float
    """Of all ranks, while training."""
    computation: Spread
    """Of a batch on its accelerator."""
    computation_from: Literal["device", "ready steps", "all steps", "nothing"]
    """`device`: events on the accelerator; the others: the trainer's clock, on those steps."""
    step_cpu: Spread
    """CPU time of the trainer for a batch."""
    gradient_accumulation_steps: int
    synchronous: bool
    wait: Spread
    """Of the trainer for a batch; with `device` the accelerator's."""
    wait_p50: float
    wait_p99: float
    hand_over: float
    """Of a batch that was ready, in the median: how long the trainer took to have it."""
    parts: Parts
    preprocess: Spread
    """CPU time of a worker for a sample, system time left out."""
    preprocess_size_correlation: float
    worker_cpu_per_sample: float
    """CPU time of a worker process for a sample, all of it."""
    read_bytes_per_sample: float
    """By read calls, or out of mapped files."""
    calls_per_sample: float
    device_bytes_per_sample: float
    opens_per_sample: float
    mapped: bool
    """The samples are in mapped files: no call reads them."""
    shipped_bytes_per_sample: float
    """Of the arrays that a worker hands over."""
    coverage_percent: float
    """Bytes read while the hook looked, of all that the job's processes read."""
    saves: Saves | None
    evaluations: int
    """Passes that were recognised as no training, and left out."""
    torch: str
    python: str
    cores: int
    memory_gib: float
    problems: tuple[str, ...] = ()
    """Why a replay would not be this job."""
    notes: tuple[str, ...] = ()

    @property
    def loaders(self) -> int:
        """How many ranks have a loader of their own."""
        return 1 if self.ranks_that_read == "first" else self.ranks

    @property
    def cached_percent(self) -> int:
        """How much of the bytes the page cache served; of mapped files all or nothing, as read-ahead hides it."""
        read, device = self.read_bytes_per_sample, self.device_bytes_per_sample
        served = 1 - device / read if read > 0 else float(device == 0)
        if served > _CACHED:
            return 100
        return 0 if served < _COLD or self.mapped else round(100 * served)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a replay on the same storage showed."""

    folder: str
    """Below that of the answer."""
    engine: str
    samples_per_second: float
    wait_p50: float
    wait_p99: float
    hand_over: float
    calls_per_sample: float
    device_bytes_per_sample: float
    worker_cpu_per_sample: float

    def error_percent(self, recorded: Recording) -> float:
        """Return how far its throughput is off."""
        return 100 * (self.samples_per_second / recorded.samples_per_second - 1)


@dataclass(frozen=True, kw_only=True)
class RecordAnswer:
    """The answer: record.json."""

    schema_version: int = ANSWER_VERSION
    complete: bool
    recording: Recording
    data: Data | None
    replays: tuple[Replay, ...] = ()
    """The last is what the recipe was judged by."""
    replayable: bool = False
    reason: str = ""
    """Why not."""
    recipe: str = ""
    """Name of the recipe's file."""


def read_record(folder: str) -> RecordAnswer | None:
    """Return the answer that a folder holds, None where it holds none; raises UserError for a damaged one."""
    return read_answer(folder, RECORD, RecordAnswer)
