"""The measurements of a job: record.json has a `RecordAnswer`; the recipe is made of a `Recording` and its `Data`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dlemu.results.answer_files import Answer

RECORD = "record.json"
QUANTILES = 33  # steps of 3 %: more would make the workload file too long for people to read
_ALL_CACHED = 0.97  # A larger share of the bytes from the page cache counts as 100 %: reads of metadata add noise.
_NONE_CACHED = 0.03  # A smaller share counts as 0 %.
MAX_CORE_WAIT_PERCENT = 10.0  # Longer waits for a core (% of a step) suggest other load, which may differ in a replay.
VERDICTS = {True: "REPLAYABLE", False: "NOT REPLAYABLE", None: "NOT VERIFIED"}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The distribution of measured values: their mean, and quantiles at equal steps of probability from 0 to 1."""

    mean: float
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float] | NDArray[np.float64]) -> Spread:
        """Return the distribution of one or more values."""
        array = np.asarray(values, np.float64)
        probabilities = np.linspace(0, 1, QUANTILES)
        return cls(mean=float(array.mean()), quantiles=tuple(map(float, np.quantile(array, probabilities))))

    def shifted(self, by: float) -> Spread:
        """Return the distribution with `by` added to all values; negative results become 0."""
        return Spread(mean=max(0.0, self.mean + by), quantiles=tuple(max(0.0, value + by) for value in self.quantiles))

    def scaled(self, mean: float) -> Spread:
        """Return the distribution with all values scaled so that their mean is `mean`."""
        factor = mean / self.mean if self.mean > 0 else 0.0
        return Spread(mean=mean, quantiles=tuple(value * factor for value in self.quantiles))


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Where a step's time went: mean seconds, which add up to the duration of a step."""

    computing: float
    storage: float  # waiting for a batch whose worker was blocked, in most jobs by reading from storage
    cpu_queue: float  # runnable but without a core: the trainer itself, or the worker whose batch it waited for
    preprocessing: float  # waiting for a batch whose worker used a core: decoding, augmenting, CPU time of reading
    hand_over: float  # waiting for the transfer of a ready batch to the trainer; mean of all steps

    @property
    def step(self) -> float:
        return float(sum(vars(self).values()))

    @property
    def core_wait_percent(self) -> float:
        return 100 * self.cpu_queue / self.step


@dataclass(frozen=True, kw_only=True)
class Saves:
    """Checkpoints written while the job was recorded."""

    bytes: int  # mean size of one checkpoint, all ranks together
    batches_between: int | None  # mean; None (unknown) if no pass over the data had two checkpoints


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Settings of the job's DataLoader."""

    iterable: bool
    workers: int
    prefetch: int  # batches that each worker reads ahead
    start_method: str
    order: str  # `shuffled`, `in order`, or `own` for a custom sampler
    samples: int | None  # length of the dataset; None if it has none (iterable datasets)


@dataclass(frozen=True, kw_only=True)
class JobData:
    """The files that the job's samples come from."""

    format: str  # dlemu's name of the format by which a replay reads them; `raw`: whole files, as bytes
    files: int
    bytes: int
    samples_per_file: float  # or parts per file, for a job that reads only a part of a file for each sample


@dataclass(frozen=True, kw_only=True)
class Data(JobData):
    """The files that the samples come from, with what a replay of the job needs to read them."""

    folder: str
    ending: str  # such as `.jpg`; of files of several kinds `.jpg, .png`
    sizes: Spread  # of the files in the folder, bytes
    stored_bytes_per_sample: float | None = None  # None if it is unknown how many samples a file holds
    group_rows: int = 0  # rows per row group of Parquet; 0 for other formats


@dataclass(frozen=True, kw_only=True)
class Reads:
    """How the job, or a replay of it, read. Times in s."""

    samples_per_second: float  # of all ranks together, while training
    calls_per_sample: float
    device_bytes_per_sample: float
    hand_over: float  # median time to receive a batch that was ready; 0 if none was


@dataclass(frozen=True, kw_only=True)
class JobRun(Reads):
    """How the job trained, without warm-up and evaluation."""

    ranks: int
    parts: Parts
    read_bytes_per_sample: float  # by system calls, or from files that NumPy maps; 0 (unknown) for other mapped files
    device_bytes_counted: bool = True  # False on file systems for which the kernel counts no bytes (FUSE, networks)
    mapped: bool  # whether the samples are in memory-mapped files, which are read without read calls


@dataclass(frozen=True, kw_only=True)
class Recording(JobRun):
    """All measurements of the job: how it ran, and what its recipe needs."""

    coverage_percent: float  # bytes of the reads that the hook saw, in % of all bytes that the job's processes read
    loaders: int  # ranks with a DataLoader: all, or 1 if rank 0 reads for all, as with Accelerate's dispatcher
    loading: Loading
    batch_size: int  # samples per batch of a loader, which may serve all ranks; their rounded mean if they vary
    steps: int  # measured batches of a rank
    computation: Spread  # compute time per batch; a replay that receives batches faster or slower adds the difference
    step_cpu: Spread  # CPU time of the trainer per batch, except for receiving the batch from a worker
    gradient_accumulation_steps: int  # batches per optimizer step
    synchronous: bool  # the trainer requests a batch only once the accelerator has computed the last
    preprocess: Spread  # CPU time of a worker per sample, without system time
    worker_cpu_per_sample: float  # CPU time of a worker process per sample, with system time
    opens_per_sample: float
    maps_files: bool = False  # files were mapped while batches were loaded, or devices were read without read calls
    samples_before: int = 0  # samples loaded before the first measured batch, as warm-up
    shipped_bytes_per_sample: float  # size of the arrays that a worker sends to the trainer
    arrays: int = 0  # arrays (tensors) in a batch, median; 0 if none or unknown
    saves: Saves | None
    problems: tuple[str, ...] = ()  # why a replay would not behave like this job
    notes: tuple[str, ...] = ()

    @property
    def files_per_sample(self) -> int:
        """Files that a sample is read from: 2 for an image and its mask; 1 also if a file holds several samples."""
        return max(1, round(self.opens_per_sample))

    @property
    def cached_percent(self) -> int | None:
        """Share of bytes from the page cache, %; None: unknown. Of mapped files 0 or 100: read-ahead hides the rest."""
        read, device = self.read_bytes_per_sample, self.device_bytes_per_sample
        served = 1 - device / read if read > 0 else float(device == 0)
        if served > _ALL_CACHED:
            return 100 if self.device_bytes_counted else None  # Devices may have served bytes uncounted.
        return 0 if served < _NONE_CACHED or self.mapped else round(100 * served)


@dataclass(frozen=True, kw_only=True)
class Replay(Reads):
    """What was measured in a replay on the same storage."""

    folder: str  # name of the replay's folder, beside record.json
    engine: str
    worker_cpu_per_sample: float
    core_wait_percent: float = 0.0  # of the trainers' time

    def error_percent(self, recorded: JobRun) -> float:
        """Return how much the replay's samples/s differ from the job's, %."""
        return 100 * (self.samples_per_second / recorded.samples_per_second - 1)


@dataclass(frozen=True, kw_only=True)
class RecordAnswer(Answer):
    """A recorded job: record.json."""

    complete: bool = field()  # required here, unlike in `Answer`
    recording: JobRun  # the part of the `Recording` that record.json keeps
    data: JobData | None  # the part of the `Data` that record.json keeps
    replays: tuple[Replay, ...] = ()
    """In the order they ran; the last one decides whether the recipe is replayable."""
    replayable: bool | None = None
    reason: str = ""
    """Why the recipe is not replayable, or (null) not verified; empty where it is."""
