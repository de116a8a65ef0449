"""Traits: the properties of a loader that are known before a run without importing its framework."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator

from datagen.errors import UserError
from datagen.registry import companion
from datagen.spec import DatasetSpec
from dlemu.config.schema import Reader, Workload
from dlemu.loaders.loader_base import Interleave, LoaderSpec

PROCESS_BYTES = 24 << 20  # private memory of an idle rank or worker (CPython 3.11, forked after PyTorch 2.13's import)


class LoaderTraits:
    """Properties of a loader; the defaults apply to loaders whose workers read by dlemu's own `BatchMaker`.

    A loader's module declares other values in a subclass called `Traits`; without one, the defaults apply. Code that
    depends on a loader's behaviour looks at its traits, never at its name.
    """

    framework: str = "the loader"  # name in messages, such as PyTorch
    packages: tuple[str, ...] = ()  # distributions that contain the framework, such as torch
    module: str = ""  # the framework's module; empty without a framework
    extra: str = ""  # the extra of dlemu (`pip install dlemu[...]`) that installs the framework
    formats: tuple[str, ...] = ()  # formats that the loader supports; empty: all
    direct_formats: tuple[str, ...] = ()  # formats that the framework itself can read with O_DIRECT
    pins: bool = True  # whether `reader.pin_memory` is supported
    collates: bool = False  # whether `reader.tensors` is supported
    in_turn: bool = False  # worker k modulo `read_threads` makes batch k; otherwise, the next free worker makes it

    def is_installed(self) -> bool:
        """Return whether the framework can be imported, without importing it."""
        try:
            return not self.module or importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # the package of `module` is missing
            return False

    def reads_files(self, dataset_format: str) -> bool:
        """Return whether the loader reads files of a format itself, without dlemu's `Fetcher`."""
        return False

    def interleave(self, reader: Reader, dataset: DatasetSpec) -> Interleave | None:
        """Return how files take turns if read as streams (`StreamPlan`); None: samples are read by position."""
        return None

    def settings_used(self, dataset_format: str) -> Collection[str]:
        """Return which of `reader.computation_threads`, `transfer_size` and `shuffle_size` have an effect."""
        return () if self.reads_files(dataset_format) else ("reader.transfer_size",)

    def batches_ahead(self, spec: LoaderSpec) -> int:
        """Return the maximum number of batches ready or in the making in a rank's loader, without the trainer's."""
        return spec.reader.read_threads * spec.reader.prefetch_per_worker

    def rank_bytes(self, spec: LoaderSpec) -> int:
        """Return the bytes of memory that a rank and its workers use: processes, batch buffers, read buffers."""
        workers = max(1, spec.reader.read_threads)
        read_buffers = sum(phase.fetch.buffer_bytes for phase in spec.phases.values() if not phase.fetch.reads_nothing)
        samples = max((phase.batch_size for phase in spec.phases.values()), default=0)
        batch_buffers = spec.slots * (spec.slot_bytes + samples * spec.reader.tensor_bytes)
        return batch_buffers + workers * read_buffers + (workers + 1) * PROCESS_BYTES

    def notes(self, dataset_format: str) -> tuple[str, ...]:
        """Return sentences for the result about what can't be measured with this loader."""
        if not self.reads_files(dataset_format):
            return ()
        advice = "if AU is low, check whether the cores were busy before blaming the storage"
        return (f"the ceiling leaves out the readers and decoders of {self.framework} (docs/loaders.md): {advice}",)

    def problems(self, workload: Workload) -> Iterator[str]:
        """Yield a message for each setting of the workload that this loader does not support."""
        name = workload.dataset.format
        instead = "reader.data_loader=pytorch"
        if self.formats and name not in self.formats:
            wanted = f"one of {', '.join(self.formats)}, or {instead}"
            yield f"dataset.format is {name!r}, for which {self.framework} has no reader; wanted {wanted}"
            return
        unsupported = {} if self.pins else {"pin_memory": "its batches are not pinned"}
        if self.reads_files(name):
            unsupported["verify"] = f"{self.framework} itself reads {name} files, and does not know their content"
            if name not in self.direct_formats:
                unsupported["odirect"] = f"{self.framework} itself reads {name} files, through the page cache"
        for key, reason in unsupported.items():
            if getattr(workload.reader, key):
                yield f"reader.{key} is true: {reason}; wanted reader.{key}=false, or {instead}"
        if workload.reader.worker_streams and name == "parquet" and not self.in_turn:
            yield f"reader.worker_streams is true: any reader takes any batch, with its row group; wanted {instead}"
        if workload.reader.tensors and not self.collates:
            tensors = workload.reader.tensors
            yield f"reader.tensors is {tensors}: this loader collates no tensors; wanted 0, or {instead}"
        if self.reads_files(name) and not workload.storage.has_paths:
            opens = f"{self.framework} itself opens {name} files by path"
            yield f"storage.storage_type is {workload.storage.storage_type!r}: {opens}; wanted local_fs, or {instead}"


def check_installed(data_loader: str) -> None:
    """Raise UserError if the loader's framework is not installed; called before data is generated or probed."""
    traits = traits_of(data_loader)
    if not traits.is_installed():
        problem = f"reader.data_loader={data_loader} needs {traits.framework}, which is not installed"
        instead = "threads" if traits.module == "torch" else "pytorch"
        raise UserError(f"{problem}: pip install 'dlemu[{traits.extra}]', or set reader.data_loader={instead}")


def traits_of(data_loader: str) -> LoaderTraits:
    """Return the traits of the loader that `reader.data_loader` names. Raises UserError if there is no such loader."""
    traits: type[LoaderTraits] = companion("dlemu.loaders", data_loader, "Traits", LoaderTraits)
    return traits()
