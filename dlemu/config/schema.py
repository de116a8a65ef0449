"""Declares every setting of a run once: a field has its name (DLIO's), type, range, unit and meaning.

A `Workload` is frozen and holds only plain values, so that it can be sent to other processes and saved as config.yaml.
`settings_class` returns a dataclass with the structure of the YAML, in which kinds of jobs have sections of their own.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from msgspec import Meta

from datagen.errors import UserError
from datagen.registry import companion, installed, names
from datagen.settings import ALL_OR_SOME, MAX_BYTES
from datagen.settings import BYTES as BYTES
from datagen.settings import MORE_THAN_0 as MORE_THAN_0
from datagen.settings import SECONDS as SECONDS
from datagen.settings import Unit as Unit
from datagen.settings import at_least as at_least
from datagen.spec import DatasetSpec, Decode, EngineName, build
from datagen.storage.storage_base import FOLDER_TYPES, StorageSpec, storage_spec
from dlemu.config.duration import MOST_SECONDS, NO_TIME
from dlemu.config.duration import Duration as Duration

Datatype = Literal["fp16", "bf16", "fp32", "fp64", "int8", "uint8"]  # of a tensor's elements, as in DLIO
DATATYPE_BYTES: dict[str, int] = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "int8": 1, "uint8": 1}  # of one element
assert tuple(DATATYPE_BYTES) == get_args(Datatype)
Shuffle = Literal["off", "seed", "random"]
MOST_PROCESSES = 10**6  # more than any job has; tensor x pipeline x expert still fits in 64 bits
MOST_EPOCHS = 10**5  # more than any training has, so that a typing error is refused
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How a model is split over ranks. Defaults are DLIO's."""

    tensor: Annotated[int, at_least(1, MOST_PROCESSES)] = 1
    """Ranks that share each matrix."""
    pipeline: Annotated[int, at_least(1, MOST_PROCESSES)] = 1
    """Stages that share the layers."""
    data: Annotated[int, ALL_OR_SOME] = -1
    """Copies of the model; -1: as many as the ranks allow. `checkpoint.mode=subset` needs it."""
    zero_stage: Annotated[int, Meta(ge=0, le=3)] = 0
    """ZeRO stage. 0: one copy writes all; 1, 2: each writes its part of the optimizer; 3: and its part of the model."""
    expert: Annotated[int, at_least(1, MOST_PROCESSES)] = 1
    """Ranks over which the experts of a layer are distributed; they are part of the data-parallel ones."""


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """The sizes of a transformer with gated feed-forward layers. Defaults are DLIO's."""

    vocab_size: Annotated[int, at_least(1)] = 32000
    """Tokens of the vocabulary: rows of the embedding, columns of the output layer."""
    hidden_size: Annotated[int, at_least(1)] = 2048
    """Width of the model: elements of a token's vector between layers."""
    ffn_hidden_size: Annotated[int, at_least(1)] = 8192
    """Inner width of a feed-forward network: of its gate and of its up projection."""
    num_attention_heads: Annotated[int, at_least(1)] = 32
    """Heads of the queries."""
    num_kv_heads: Annotated[int, at_least(1)] = 8
    """Heads of the keys and values; fewer than `num_attention_heads` in grouped-query attention."""
    head_dim: Annotated[int, at_least(0)] = 0
    """Elements of one attention head; 0 is hidden_size // num_attention_heads."""
    num_experts: Annotated[int, at_least(0, 10**5)] = 0
    """Experts of each layer, among which a router chooses; 0: every layer has one feed-forward network."""
    moe_ffn_hidden_size: Annotated[int, at_least(0)] = 0
    """Width of one expert; 0 is `ffn_hidden_size`."""
    num_shared_experts: Annotated[int, at_least(0)] = 0
    """Experts of each layer that take every token."""
    num_dense_layers: Annotated[int, at_least(0)] = 0
    """The first layers that have no experts but one network of `ffn_hidden_size`."""


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str = "default"
    """The workload's name in results and in their folder; by default that of its file."""
    type: str = ""
    """`transformer`: a checkpoint has the layers of section `transformer`; any other: also `model_size_bytes`."""
    model_size_bytes: Annotated[int, at_least(0, MAX_BYTES), BYTES] = 10240
    """Bytes of one checkpoint of a model that is not described by its layers."""
    num_layers: Annotated[int, Meta(ge=-1, le=10**4)] = -1
    """Layers of a transformer; -1: not known."""
    model_datatype: Datatype = "fp16"
    """Type of the model's numbers in a checkpoint."""
    optimizer_datatype: Datatype = "fp32"
    """Type of the optimizer's numbers in a checkpoint."""
    parallelism: Parallelism = Parallelism()
    """How the model is split over ranks."""
    transformer: Transformer = Transformer()
    """Widths and heads of a transformer."""
    layer_parameters: Annotated[tuple[int, ...], BYTES] = ()
    """Bytes of each tensor of a layer, before it is split by `parallelism.tensor` (DLIO's older way)."""
    optimization_groups: Annotated[tuple[int, ...], BYTES] = ()
    """Bytes of each group of the optimizer on each rank, which is stored three times (DLIO's older way)."""

    @property
    def has_layers(self) -> bool:
        """Whether its checkpoint consists of layers rather than only of `model_size_bytes`."""
        return self.num_layers > 0

    @property
    def has_size(self) -> bool:
        """Whether the size of its checkpoints is set; the default, DLIO's, is too small for any model."""
        return self.has_layers or self.model_size_bytes != Model.model_size_bytes or bool(self.optimization_groups)


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """Batch size and computation time of a type of accelerator with a workload; they are always used together."""

    batch_size: Annotated[int, at_least(1)]
    """Samples per step."""
    computation_time: Annotated[Duration, SECONDS]
    """Seconds it computes on one batch."""


@dataclass(frozen=True, kw_only=True)
class Workflow:
    generate_data: bool = False
    """Make the dataset first, as `dlemu datagen` does."""
    train: bool = True
    """Train on the dataset."""
    evaluation: bool = False
    """Also read the validation set, after the epochs that the section `evaluation` names."""
    checkpoint: bool = False
    """Also write checkpoints while training, after the steps and epochs that the section `checkpoint` names."""


@dataclass(frozen=True, kw_only=True)
class Storage:
    storage_type: str = "local_fs"
    """`local_fs` (folders of any mounted file system), `s3`, `fsspec`, or the dotted name of your own module."""
    storage_root: str = "./"
    """Where a relative `data_folder` or `checkpoint_folder` starts; for s3 the bucket, or `bucket/prefix`."""
    storage_options: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    """Options of s3, fsspec or a storage of your own (docs/objects.md); credentials belong in the environment."""

    @property
    def has_paths(self) -> bool:
        """Whether files are on mounted file systems, where programs open them by path."""
        return self.storage_type in FOLDER_TYPES

    def resolved(self, folder: str) -> str:
        """Return a folder joined with `storage_root` by DLIO's rule; object stores' folders and URLs are unchanged."""
        if not self.has_paths:
            return folder
        folder, root = os.path.expanduser(folder), os.path.expanduser(self.storage_root)
        if "://" in folder or os.path.isabs(folder) or os.path.normpath(root) == os.curdir:
            return folder
        return os.path.normpath(os.path.join(root, folder))


@dataclass(frozen=True, kw_only=True)
class Reader:
    data_loader: str = "pytorch"
    """Name of a module in `dlemu.loaders`, or the dotted name of your own."""
    batch_size: Annotated[int, at_least(1)] = 1
    """Samples of one step on one accelerator."""
    batch_size_eval: Annotated[int, at_least(1)] = 1
    """Samples of one step of an evaluation."""
    read_threads: Annotated[int, at_least(0, MOST_PROCESSES)] = 1
    """Workers of each rank that read; 0: the trainer does. With tensorflow: files read at a time."""
    prefetch_size: Annotated[int, at_least(0, MOST_PROCESSES)] = 2
    """Batches ready or under way over all workers of a rank, as DLIO counts; 0: two for each worker."""
    file_shuffle: Shuffle = "off"
    """Order of the files in each epoch: not shuffled, by `train.seed`, or by a new seed in each run."""
    sample_shuffle: Shuffle = "off"
    """Order of the samples in each epoch, over all files; choices as of `file_shuffle`."""
    worker_streams: bool = False
    """Workers read contiguous parts of the epoch, as of an IterableDataset, not batches in turn (pytorch)."""
    computation_threads: Annotated[int, at_least(1, MOST_PROCESSES)] = 1
    """Batches that TensorFlow parses at a time (tensorflow)."""
    transfer_size: Annotated[int, at_least(0, MAX_BYTES), BYTES] = 0
    """Maximum bytes of one read call, with `engine=fast`, `odirect` or TensorFlow's reader; 0: see docs/loaders.md."""
    shuffle_size: Annotated[int, at_least(1)] = 1024
    """Samples in the window that `sample_shuffle` draws from (tensorflow)."""
    odirect: bool = False
    """Bypass the page cache when reading (O_DIRECT)."""
    range_bytes: Annotated[int, at_least(0), BYTES] = 0
    """`s3`: maximum bytes of one request; 0: all that is needed of an object."""
    io_depth: Annotated[int, at_least(1)] = 1
    """`s3`: requests that a worker has in flight."""
    evict_page_cache: Literal["never", "start", "epochs"] = "never"
    """When to drop the dataset's pages from memory; needs no root. Its time counts in `total_seconds` alone."""
    page_cache_percent: Annotated[float, Meta(ge=0, le=100), Unit("%")] = 0.0
    """Share of the dataset read into memory again after `evict_page_cache`; a verdict needs `metric.cached=true`."""
    engine: EngineName = "matched"
    """`matched` makes the read calls of the format's usual library, `fast` few large ones; `library` is the library."""
    decode: Decode = "none"
    """`full` unpacks in the workers what the format encodes: pixels, numbers of csv, chunks of HDF5."""
    verify: bool = False
    """Check every byte of every sample against what was generated (costs CPU; finds wrong data)."""
    preprocess_time: Annotated[Duration, SECONDS] = NO_TIME
    """Seconds a worker spends on each sample after reading it."""
    preprocess: Literal["burn", "sleep"] = "burn"
    """`burn` computes for `preprocess_time` of CPU time, as a job; `sleep` none: for more workers than cores."""
    pin_memory: bool = False
    """Copy each batch to pinned memory (needs a CUDA device)."""
    tensors: Annotated[int, at_least(0, 64)] = 0
    """Tensors of a batch that PyTorch hands to the trainer, as in a job; 0: samples stay in dlemu's own buffers."""
    tensor_bytes: Annotated[int, at_least(0, MAX_BYTES), BYTES] = 0
    """Bytes of a sample in the first of `tensors`; the others are labels."""
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] = "fork"
    """How Python starts the worker processes."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 10
    """Niceness of the workers, so that a trainer never waits long for a core."""

    @property
    def prefetch_per_worker(self) -> int:
        """Batches that each worker reads ahead: its share of `prefetch_size`, or 2 if that is 0, as in DLIO."""
        return math.ceil(self.prefetch_size / max(1, self.read_threads)) or 2


@dataclass(frozen=True, kw_only=True)
class Train:
    epochs: Annotated[int, at_least(1, MOST_EPOCHS)] = 1
    """Passes over the training set."""
    computation_time: Annotated[Duration, SECONDS] = NO_TIME
    """Seconds an accelerator computes on one batch."""
    step_cpu_time: Annotated[Duration, SECONDS] = NO_TIME
    """CPU seconds that the trainer itself computes in each step, which ends when it and the accelerator are done."""
    compute: str = "sleep"
    """What computes: a module in `dlemu.accelerators` (`sleep` emulates), or the dotted name of your own."""
    total_training_steps: Annotated[int, ALL_OR_SOME] = -1
    """End after this many steps over all epochs; -1 takes every step of every epoch."""
    seed: Annotated[int, at_least(0, 2**63 - 1)] = 123
    """Seed of the shuffles and of random times."""
    seed_change_epoch: bool = True
    """Shuffle each epoch differently, by seed + epoch; false: every epoch has the same order."""
    synchronous: bool = False
    """The host takes the next batch only after the step, as a loop that reads the loss each step."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    eval_time: Annotated[Duration, SECONDS] = NO_TIME
    """Seconds an accelerator computes on one batch of the validation set."""
    eval_after_epoch: Annotated[int, at_least(1)] = 1
    """First epoch that an evaluation follows."""
    epochs_between_evals: Annotated[int, at_least(1)] = 1
    """Epochs from one evaluation to the next."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    checkpoint_folder: str = "./checkpoints/"
    """Folder that checkpoints are written to and read from."""
    checkpoint_after_epoch: Annotated[int, at_least(1)] = 1
    """First epoch that a checkpoint follows."""
    epochs_between_checkpoints: Annotated[int, at_least(1)] = 1
    """Epochs from one checkpoint to the next."""
    steps_between_checkpoints: Annotated[int, ALL_OR_SOME] = -1
    """After every this many steps of an epoch, and not at its end; -1: only at the end of epochs."""
    type: Literal["rank_zero", "all_ranks"] = "rank_zero"
    """Which ranks write a model that is described only by `model.model_size_bytes`."""
    fsync: bool = True
    """End each file with fsync, so that the time of writing ends when the storage has the bytes."""
    mode: Literal["default", "subset"] = "default"
    """`subset`: the ranks are the first of a larger job with `model.parallelism.data` copies of the model."""
    job_ranks: Annotated[int, at_least(0, MOST_PROCESSES)] = 0
    """Ranks of the whole job; 0: no others (or those of `mode=subset`)."""
    first_rank: Annotated[int, at_least(0, MOST_PROCESSES)] = 0
    """Number of this run's rank 0 in the whole job; the other ranks follow."""
    format: str = "torch"
    """Name of a module in `dlemu.checkpoints.formats`, or the dotted name of your own."""
    num_checkpoints_write: Annotated[int, Meta(ge=-1, le=10**6)] = -1
    """Checkpoints written without training; 0 or -1: none. If this and read are -1, `dlemu checkpoint` takes 10."""
    num_checkpoints_read: Annotated[int, Meta(ge=-1, le=10**6)] = -1
    """Checkpoints that are then read, the oldest first; 0 and -1 as for `num_checkpoints_write`."""
    time_between_checkpoints: Annotated[float, Meta(ge=-1, le=MOST_SECONDS), SECONDS] = 5.0
    """Seconds that the accelerators compute before each checkpoint."""
    rank_sync: bool = False
    """A checkpoint's time ends for every rank when the last one is done."""
    recovery_rank_shift: bool = False
    """Each rank reads what its neighbour host's rank wrote, which this host's memory does not hold."""
    randomize_tensor: bool = True
    """Random bytes, different in each checkpoint; false: every tensor is all ones."""
    odirect: bool = False
    """Bypass the page cache (O_DIRECT)."""
    writers: Annotated[int, Meta(ge=1, le=64)] = 1
    """Threads of each rank that write."""
    transfer_size: Annotated[int, Meta(ge=4096, le=32 << 20, multiple_of=4096), BYTES] = 8388608
    """Bytes of a write call, and of a read call with `read_as=fast`: a multiple of 4096."""
    read_as: Literal["fast", "torch_load", "mlperf_v3"] = "fast"
    """`fast`: by `readers` threads; `torch_load`: by one, tensor by tensor; `mlperf_v3`: by 4, without read-ahead."""
    readers: Annotated[int, Meta(ge=1, le=64)] = 4
    """Threads of each rank that read, with `read_as=fast`."""
    evict_page_cache: bool = True
    """Before reading, each host drops from its memory what its ranks will read; in no measured time."""
    verify: bool = False
    """Compare every byte that is read with what was written (costs CPU)."""
    keep_last: Annotated[int, at_least(0)] = 0
    """Keep this many complete checkpoints and remove older ones; 0 keeps all, as training does."""
    interval_seconds: Annotated[float, MORE_THAN_0, SECONDS] = 1800.0
    """Seconds between checkpoints in training, for what share of its time they take."""
    gpu_mtbf_hours: Annotated[float, at_least(0), Unit("hours")] = 0.0
    """Mean time between failures of one accelerator: a job's is as much shorter as it has ranks; 0: not known."""
    asynchronous: bool = False
    """Training pauses only for a snapshot into the host's memory; the storage gets it while training continues."""
    snapshot_gb_per_second: Annotated[float, MORE_THAN_0, Unit("GB/s")] = 20.0
    """1e9 bytes/s of a rank's snapshot, with `asynchronous`: from its accelerator to the host's memory."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    au: Annotated[float, Meta(gt=0, le=1), Unit("share")] = 0.90
    """The run passes when its AU reaches this share."""
    verdict: Literal["sustained", "au", "rules"] = "sustained"
    """Which AU is compared with `au`: what the storage sustains, that of counted steps (DLIO's), or of all steps."""
    cached: bool = False
    """Judge although the page cache served bytes: the verdict is then memory's, too."""
    exclude_start_steps: Annotated[int, at_least(0)] = 1
    """Steps dropped from `au` at the start of each block (a range of steps between epoch starts and checkpoints)."""
    exclude_end_steps: Annotated[int, at_least(0)] = 0
    """Steps dropped from `au` at the end of each block."""
    ceiling_seconds: Annotated[float, at_least(0, MOST_SECONDS), SECONDS] = 1.0
    """How long the ceiling (AU of this host without storage) is measured before the run; 0: not."""
    scaling_seconds: Annotated[float, at_least(0, MOST_SECONDS), SECONDS] = 1.0
    """After a run that waited for reads: duration of each test of whether more readers get more MB/s; 0: none."""


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    enabled: bool = True
    """Record what the devices and the hosts do during the run; one recorder on each host."""
    interval_seconds: Annotated[float, at_least(0.01, MOST_SECONDS), SECONDS] = 0.5
    """Time between two readings; costly ones are taken less often automatically."""


@dataclass(frozen=True, kw_only=True)
class Output:
    folder: str = ""
    """The run's folder; empty makes `results/WORKLOAD/YYYYmmdd-HHMMSS`."""
    report: bool = True
    """Make the page report.html after the run (needs the extra `report`; without it a note says so)."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Where a recorded workload comes from; record.json has all that was measured of the job."""

    BY_USERS = False  # errors never suggest these keys to users
    version: Annotated[int, at_least(0)] = 0
    """Version of the recording's format; 0: the workload was not recorded."""
    replayable: bool | None = None
    """A replay on the storage of the recording agreed with it; null: not verified."""
    reason: str = ""
    """Why it is not replayable, or not verified."""
    coverage_percent: Annotated[float, at_least(0)] = 0.0
    """Share of the bytes read, as counted by the kernel, that the recorder saw."""
    ranks: Annotated[int, at_least(0)] = 0
    """Ranks of the job that load batches."""
    samples_per_second: Annotated[float, at_least(0)] = 0.0
    """Samples/s of all ranks of the job."""
    hand_over_seconds: Annotated[float, at_least(0), SECONDS] = 0.0
    """Median time in which the trainer of the replay received a batch that was ready; 0: not replayed."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """All settings of one run."""

    ranks: Annotated[int, at_least(1, MOST_PROCESSES)] = 1
    """Ranks (one accelerator each) to fork on this host; under mpirun or srun the launcher's count is used."""
    accelerator: str = ""
    """A name in `accelerators`: an override sets its batch size and computation time, in a file where these are not."""
    scale: str = ""
    """A name in `scales`, as an override: fewer bytes, same step time. In a file: which scale its values are from."""
    timeout_seconds: Annotated[float, MORE_THAN_0, SECONDS] = 600.0
    """How long a rank waits for a batch or for another rank before the run is ended."""
    framework: str = "pytorch"
    """The framework to name in files written for DLIO; data is read by `reader.data_loader`."""
    model: Model = field(default_factory=Model)
    """The model that is trained, as far as its name and its checkpoints are concerned."""
    workflow: Workflow = Workflow()
    """Parts of a run: making data, training, evaluation, checkpoints."""
    dataset: DatasetSpec = field(default_factory=DatasetSpec)
    """The files that training reads, and `dlemu datagen` makes."""
    storage: Storage = Storage()
    """Where datasets and checkpoints are."""
    reader: Reader = Reader()
    """How the dataset is read."""
    train: Train = Train()
    """How long training takes, and what an accelerator does in each step."""
    evaluation: Evaluation = Evaluation()
    """When the validation set is read, and how long its steps take."""
    checkpoint: Checkpoint = Checkpoint()
    """When and how checkpoints are written and read."""
    metric: Metric = Metric()
    """How the run is judged."""
    telemetry: Telemetry = Telemetry()
    """What is recorded of devices and hosts."""
    output: Output = Output()
    """What the run writes."""
    recorded: Recorded = Recorded()
    """Where a recorded workload comes from."""
    accelerators: dict[str, Accelerator] = field(default_factory=dict)
    """Batch size and computation time by type of accelerator, for `accelerator=NAME`."""
    scales: dict[str, dict[str, object]] = field(default_factory=dict)
    """Settings of smaller variants of the workload by name, for `scale=NAME`; by the name '' those it replaced."""
    notes: tuple[str, ...] = ()
    """What in the configuration has no effect, and why; filled by `dlemu.config.load`, printed and saved."""
    unsupported: tuple[str, ...] = ()
    """What the configuration requests that dlemu can't do yet, and why; `check_runnable` refuses to train with it."""
    kinds: dict[str, dict[str, object]] = field(default_factory=dict)
    """Sections that kinds of jobs declare for themselves, as plain values; in YAML they are next to the others."""

    def section(self, section_type: type[S]) -> S:
        """Return a kind's settings as `section_type`, whose module names the section in `SECTION`. Raises UserError."""
        name, _ = sys.modules[section_type.__module__].SECTION
        return build(section_type, self.kinds.get(name, {}), name)

    @property
    def results_name(self) -> str:
        """Name of the results' folder: the model's; that of the data folder for own files without a named workload."""
        is_unnamed = self.dataset.source == "folder" and self.model.name == "default"
        return (is_unnamed and os.path.basename(os.path.abspath(self.dataset.data_folder))) or self.model.name

    @property
    def storage_spec(self) -> StorageSpec:
        """The storage of dataset and checkpoints; raises UserError for an unknown type of storage."""
        spec = StorageSpec(
            type=self.storage.storage_type,
            root=self.storage.storage_root,
            options=tuple(self.storage.storage_options.items()),
            direct=self.reader.odirect,
            range_bytes=self.reader.range_bytes,
            io_depth=self.reader.io_depth,
        )
        return storage_spec(spec)


KINDS = "dlemu.jobs"  # package of the built-in kinds of jobs, and group of entry points for those of other packages
OWN = "kinds"  # field of `Workload` with the sections of kinds of jobs, which in YAML are beside the shared ones
SYNONYMS = {  # key or option of other tools -> dlemu's setting, or a phrase on what to use instead, for messages
    **dict.fromkeys(("rank", "num_gpus", "gpus", "ranks", "world_size", "nproc", "num_processes", "np", "n"), "ranks"),
    **dict.fromkeys(("num_accelerators", "max_accelerators", "accelerators"), "ranks"),
    **dict.fromkeys(("num_workers", "reader.num_workers"), "reader.read_threads"),
    "num_client_hosts": "the hosts on which mpirun or srun starts ranks (mpirun --host A,B -np RANKS dlemu train ...)",
    "checkpoint.enabled": "workflow.checkpoint",
    "model": "workload",
    "accelerator_type": "accelerator",
    "data_dir": "dataset.data_folder",
    "results_dir": "output.folder",
    "checkpoint_folder": "checkpoint.checkpoint_folder",
}


@cache
def sections() -> dict[str, type[Any]]:
    """Return section name -> dataclass for the installed kinds of jobs that have settings; raises UserError.

    The module `settings` of a kind declares its section: `SECTION = ("stat", StatSettings)`, a frozen dataclass.
    """
    types: dict[str, type[Any]] = {}
    for kind in names(KINDS):
        entry = installed(KINDS).get(kind)
        package = entry.module if entry else f"{KINDS}.{kind}"
        try:
            name, section = companion(KINDS, f"{package}.settings", "SECTION") or ("", None)
        except UserError as error:
            raise UserError(
                f"{package}, an installed kind of job, can't be imported: {error}; or uninstall it"
            ) from error
        if name in types or name in Workload.__dataclass_fields__:
            raise UserError(f"{package}.settings declares the settings {name!r}, which already exist: rename them")
        if section is not None:
            types[name] = section
    return types


@cache
def settings_class() -> Any:
    """Return the dataclass of all settings: a Workload with a field for each section of a kind, as in the YAML."""
    kinds_sections = [(name, section, field(default_factory=section)) for name, section in sections().items()]
    return make_dataclass(
        "Workload",
        [(OWN, ClassVar[Any]), *kinds_sections],  # as a ClassVar, `kinds` is no field
        bases=(Workload,),
        namespace={"__module__": __name__, "SYNONYMS": SYNONYMS},
        frozen=True,
        kw_only=True,
    )


def to_workload(settings: Any, foreign: Mapping[str, Any]) -> Workload:
    """Return settings as a Workload, whose `kinds` are the kinds' sections that differ from defaults, and `foreign`."""
    shared = dict(vars(settings))
    kinds_sections = {name: shared.pop(name) for name in sections()}
    changed = {name: plain(section) for name, section in kinds_sections.items() if section != sections()[name]()}
    return Workload(**shared, kinds={**changed, **foreign})


def full_size_values(full: Any, scaled: Any) -> dict[str, Any]:
    """Return section -> key -> value in `full` of each setting that a scale changed in `scaled`."""
    scaled_sections = plain(scaled)
    return {
        name: {key: value for key, value in section.items() if value != scaled_sections[name][key]}
        for name, section in plain(full).items()
        if isinstance(section, dict) and section != scaled_sections[name] and name not in ("accelerators", "scales")
    }


def full_size(workload: Workload) -> Workload | None:
    """Return the workload with the shared settings that its scale changed at full size; None if these are not known."""
    if not workload.scale:
        return workload
    if (full_values := workload.scales.get("")) is None:
        return None
    scaled = {name: getattr(workload, name) for name in full_values if name in Workload.__dataclass_fields__}
    full = {name: build(type(part), plain(part) | full_values[name], name) for name, part in scaled.items()}
    return replace(workload, **full)


def plain(value: Any) -> Any:
    """Return a value as nested mappings and lists: dataclasses as mappings, durations as their `to_value`."""
    if hasattr(value, "to_value"):
        return value.to_value()
    if is_dataclass(value):
        return {part.name: plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
