"""Every setting of a run, declared once: section and key names are DLIO's, units are in the names or the docstrings.

A `Workload` is frozen and holds plain values only, so it crosses processes and is written as `config.yaml` as it is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from datagen.spec import DatasetSpec, Decode
from datagen.storage.storage_base import FOLDER_TYPES, StorageSpec, storage_spec
from dlemu.config.duration import NO_TIME
from dlemu.config.duration import Duration as Duration
from dlemu.config.model import Model as Model

Shuffle = Literal["off", "seed", "random"]


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """What one type of accelerator does with a workload; the pair belongs together."""

    batch_size: int
    computation_time: Duration


@dataclass(frozen=True, kw_only=True)
class Workflow:
    generate_data: bool = False
    train: bool = True
    evaluation: bool = False
    checkpoint: bool = False


@dataclass(frozen=True, kw_only=True)
class Storage:
    storage_type: str = "local_fs"
    """`local_fs` (folders of any mounted file system), `s3`, `fsspec`, or the dotted name of your own module."""
    storage_root: str = "./"
    """A relative `data_folder` or `checkpoint_folder` starts here; `dlemu.config.load` joins them and leaves `./`.

    For s3 it is the bucket, or `bucket/prefix`. A storage of your own is given it as it is.
    """
    storage_options: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    """What s3, fsspec or a storage of your own want to know (docs/objects.md).

    Credentials belong in the environment: they are left out.
    """

    def resolved(self, folder: str) -> str:
        """Return where a folder lies, by DLIO's rule: a relative one starts at the root; `~` is the user's home.

        A URL stays as it is, and so does the path in a storage that is not made of folders.
        """
        if self.storage_type not in FOLDER_TYPES:
            return folder
        folder, root = os.path.expanduser(folder), os.path.expanduser(self.storage_root)
        if "://" in folder or os.path.isabs(folder) or os.path.normpath(root) == os.curdir:
            return folder
        return os.path.normpath(os.path.join(root, folder))


@dataclass(frozen=True, kw_only=True)
class Reader:
    data_loader: str = "pytorch"
    """Name of a module in `dlemu.loaders`, or the dotted name of your own."""
    batch_size: int = 1
    """Samples of one step on one accelerator."""
    batch_size_eval: int = 1
    read_threads: int = 1
    """Worker processes (or threads) that read, for each rank; 0 reads in the trainer itself.

    With tensorflow and tfrecord: files that are read at a time.
    """
    prefetch_size: int = 2
    """Batches ready or under way over all workers of a rank, as DLIO counts; 0 means two for each worker."""
    file_shuffle: Shuffle = "off"
    sample_shuffle: Shuffle = "off"
    computation_threads: int = 1
    """Batches that TensorFlow takes apart at a time (tensorflow with tfrecord)."""
    transfer_size: int = 0
    """Bytes that a read call asks for at most; 0 asks as the format's usual library does (docs/loaders.md)."""
    shuffle_size: int = 1024
    """Samples in the window that `sample_shuffle` draws from (tensorflow with tfrecord)."""
    odirect: bool = False
    """Read past the page cache (O_DIRECT)."""
    range_bytes: int = 0
    """Object storage: bytes that one request asks for at most; 0 asks for what is wanted of an object by one."""
    io_depth: int = 1
    """Object storage: requests that a worker has in flight."""
    evict_page_cache: Literal["never", "start", "epochs"] = "never"
    """When to drop the dataset's pages from the hosts' memory: never, before the run, or before each epoch.

    Between epochs, outside every number but `total_seconds`; each host's ranks share the files. Needs no root.
    """
    engine: Literal["fast", "library"] = "fast"
    """`fast` reads by preadv into a reused buffer; `library` makes the call a user's script would (np.load, ...)."""
    decode: Decode = "none"
    """`full` unpacks in the workers what the format encodes: pixels of jpeg and png, numbers of csv, chunks of HDF5.

    `none` hands over the bytes as they are stored. Formats of plain bytes (npz, npy, HDF5 without chunks) are the same
    either way; the call of `engine=library` may unpack by itself (h5py does).
    """
    verify: bool = False
    """Check every byte of every sample against what was generated (costs CPU; finds wrong data)."""
    preprocess_time: Duration = NO_TIME
    """Seconds a worker spends on each sample after reading it."""
    pin_memory: bool = False
    """Copy each batch to pinned memory (needs a CUDA device)."""
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] = "fork"
    nice: int = 10
    """Niceness of the workers, so that a trainer never waits long for a core (0 to 19)."""


@dataclass(frozen=True, kw_only=True)
class Train:
    epochs: int = 1
    computation_time: Duration = NO_TIME
    """Seconds an accelerator computes on one batch."""
    compute: str = "sleep"
    """What computes: a module in `dlemu.accelerators` (`sleep` emulates), or the dotted name of your own."""
    total_training_steps: int = -1
    """End after this many steps over all epochs; -1 takes every step of every epoch."""
    seed: int = 123
    seed_change_epoch: bool = True
    synchronous: bool = False
    """The host asks for the next batch only after the step (a training loop that reads the loss each step)."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    eval_time: Duration = NO_TIME
    eval_after_epoch: int = 1
    epochs_between_evals: int = 1


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    checkpoint_folder: str = "./checkpoints/"
    checkpoint_after_epoch: int = 1
    epochs_between_checkpoints: int = 1
    steps_between_checkpoints: int = -1
    """Also every so many steps within an epoch; -1 only at the end of epochs."""
    type: Literal["rank_zero", "all_ranks"] = "rank_zero"
    """Which ranks write a model that is given by `model.model_size_bytes` alone."""
    fsync: bool = True
    mode: Literal["default", "subset"] = "default"
    """`subset`: the ranks are the first of a larger job, whose copies of the model are `model.parallelism.data`."""
    job_ranks: int = 0
    """Ranks of the whole job of which the ranks here are some; 0: these are all (with `subset`, as its mode says)."""
    first_rank: int = 0
    """Which rank of the whole job rank 0 is; the others follow."""
    format: str = "torch"
    """Name of a module in `dlemu.checkpoints.formats`, or the dotted name of your own."""
    num_checkpoints_write: int = -1
    """Checkpoints that are written without training; 0 or -1: none, but 10 by `dlemu checkpoint` where both are -1."""
    num_checkpoints_read: int = -1
    """Checkpoints that are then read, the oldest first, in the same way."""
    time_between_checkpoints: float = 5.0
    """Seconds that the accelerators compute before each of them."""
    rank_sync: bool = False
    """A checkpoint's time ends for every rank when the last one is done."""
    recovery_rank_shift: bool = False
    """Each rank reads what its neighbour host's rank wrote, which this host's memory does not hold."""
    randomize_tensor: bool = True
    """Random bytes, other ones in each checkpoint; false: every tensor is all ones."""
    content: Literal["unique", "repeated", "torch_rand"] = "unique"
    """`unique`: no compressor and no deduplication finds anything; `repeated`: every checkpoint has the same bytes.

    `torch_rand`: as DLIO's, which are the same in every checkpoint and shrink a little (numbers between 0 and 1).
    """
    odirect: bool = False
    """Write and read past the page cache (O_DIRECT)."""
    writers: int = 1
    """Threads of each rank that write."""
    transfer_size: int = 8388608
    """Bytes of a write call, and of a read call with `read_as=fast`: a multiple of 4096."""
    read_as: Literal["fast", "torch_load", "mlperf_v3"] = "fast"
    """`fast`: by `readers` threads; `torch_load`: one thread, tensor by tensor; `mlperf_v3`: 4, without read-ahead."""
    readers: int = 4
    """Threads of each rank that read, with `read_as=fast`."""
    evict_page_cache: bool = True
    """Before reading, have each host drop from its memory what its ranks will read. Outside every number."""
    verify: bool = False
    """Compare every byte that is read with what was written (costs CPU)."""
    reshard: bool = False
    """Read by other ranks than wrote it: each takes as many bytes of all files, one after another."""
    keep_last: int = 0
    """Remove the oldest once there are more than so many complete ones; 0 keeps all."""
    node_local: bool = False
    """The folder is another one on each host, on drives of its own; else all hosts must see the same."""
    interval_seconds: float = 1800.0
    """Seconds between checkpoints in the training that the result speaks of: what share of it do they take?"""
    mtbf_hours: float = 0.0
    """Mean time between failures of the whole job, for the best interval; 0: not known."""
    asynchronous: bool = False
    """Training stands still for a snapshot into the host's memory alone; the storage gets it while training goes on."""
    snapshot_gb_per_second: float = 20.0
    """1e9 bytes/s of a rank's snapshot, with `asynchronous`: from its accelerator to the host's memory."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    au: float = 0.90
    """The run passes when its AU reaches this share."""
    verdict: Literal["sustained", "au", "rules"] = "sustained"
    """Which AU is held against it: what the storage sustains, that of the counted steps (DLIO's), or of all steps."""
    cached: bool = False
    """Judge although the page cache served bytes: the verdict is then memory's as well as the storage's."""
    exclude_start_steps: int = 1
    """Steps dropped from `au` at the start of each block (a range of steps between epoch starts and checkpoints)."""
    exclude_end_steps: int = 0
    ceiling_seconds: float = 2.0
    """How long the emulator's own ceiling is measured against null storage before the run; 0 skips it."""
    scaling_seconds: float = 1.0
    """How long, twice, a run that waited for few reads at a time asks the storage whether more would help; 0 skips it.

    After the run is over and measured: it is in no number but `limited_by`.
    """
    get_price: float = 0.0
    """Price of 1,000 GET and HEAD requests to an object store, in whichever currency; for `requests.cost`."""
    put_price: float = 0.0
    """Price of 1,000 PUT, POST and LIST requests."""


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    enabled: bool = True
    """Record what the devices and the hosts do while the run goes on; one recorder on each host."""
    interval_seconds: float = 0.5
    """Time between two readings; costly ones are taken less often by themselves."""
    block_trace: bool = False
    """Trace every request of the dataset's devices: exact queue depths, latencies and sizes. Needs root."""


@dataclass(frozen=True, kw_only=True)
class Output:
    folder: str = ""
    """The run's folder; empty makes `results/WORKLOAD/YYYYmmdd-HHMMSS`."""
    report: bool = True
    """Make the page report.html after the run (needs the extra `report`; without it a note says so)."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One run, complete."""

    ranks: int = 1
    """Ranks (one accelerator each) to fork on this host; under mpirun or srun the launcher's count is used."""
    accelerator: str = ""
    """A name in `accelerators`; it picks `reader.batch_size` and `train.computation_time`.

    Given as an override it replaces the pair of the file; in a file it fills in what the file leaves open.
    """
    scale: str = ""
    """A name in `scales`, given as an override; it shrinks the workload's bytes but keeps its shape and step time.

    In a file it only records the scale that made the values beside it.
    """
    timeout_seconds: float = 600.0
    """How long a rank waits for a batch or for another rank before the run is ended."""
    framework: str = "pytorch"
    model: Model = field(default_factory=Model)
    workflow: Workflow = Workflow()
    dataset: DatasetSpec = field(default_factory=DatasetSpec)
    storage: Storage = Storage()
    reader: Reader = Reader()
    train: Train = Train()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    metric: Metric = Metric()
    telemetry: Telemetry = Telemetry()
    output: Output = Output()
    accelerators: dict[str, Accelerator] = field(default_factory=dict)
    scales: dict[str, dict[str, object]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the configuration said that has no effect, and why; filled by `dlemu.config.load`, printed and saved."""
    unsupported: tuple[str, ...] = ()
    """What the configuration asked for that dlemu can't do yet, and why; `check_runnable` refuses to train with it."""

    @property
    def storage_spec(self) -> StorageSpec:
        """Return where dataset and checkpoints lie; raises UserError where there is no such storage."""
        storage = self.storage
        return storage_spec(
            storage.storage_type,
            root=storage.storage_root,
            options=storage.storage_options,
            direct=self.reader.odirect,
            range_bytes=self.reader.range_bytes,
            io_depth=self.reader.io_depth,
        )
