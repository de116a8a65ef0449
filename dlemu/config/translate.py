"""Translates DLIO's settings, old and new: which keys have another name here, no effect, or are not supported.

The keys are those that DLIO 1.0 to 3.0 read from a workload file (its `LoadConfig`), and a few of its first releases.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

from datagen.errors import UserError
from datagen.registry import built_in, companion, names
from datagen.spec import joined_problems
from datagen.storage.storage_base import FOLDER_TYPES, LIBRARIES_OF_OBJECTS
from dlemu.config.duration import Duration
from dlemu.config.schema import Workload
from dlemu.config.sections import tree

KeyPath = tuple[str, ...]
LOADERS = "dlemu.loaders"

RENAMED_SECTIONS = {"data_reader": "reader"}

RENAMED_KEYS = {
    "model.model_size": "model.model_size_bytes",
    "checkpoint.model_size": "model.model_size_bytes",
    "checkpoint.model_size_bytes": "model.model_size_bytes",
    "checkpoint.optimization_groups": "model.optimization_groups",
    "checkpoint.num_layers": "model.num_layers",
    "checkpoint.layer_parameters": "model.layer_parameters",
    "dataset.record_length": "dataset.record_length_bytes",
    "dataset.record_length_stdev": "dataset.record_length_bytes_stdev",
    "dataset.record_length_resize": "dataset.record_length_bytes_resize",
    "dataset.num_dset_per_record": "dataset.hdf5.num_dset_per_record",
    "dataset.chunk_dims": "dataset.hdf5.chunk_dims",
    "dataset.max_shape": "dataset.hdf5.max_shape",
    "dataset.parquet.compression": "dataset.compression",
    "output.metric.exclude_start_steps": "metric.exclude_start_steps",
    "output.metric.exclude_end_steps": "metric.exclude_end_steps",
    "reader.preprocess_time_stdev": "reader.preprocess_time.stdev",
    "train.computation_time_stdev": "train.computation_time.stdev",
    "evaluation.eval_time_stdev": "evaluation.eval_time.stdev",
    "hydra.run.dir": "output.folder",
    "storage.s3_force_path_style": "storage.storage_options.s3_force_path_style",
    "storage.storage_library": "storage.storage_options.storage_library",
}
"""Old key -> equivalent key here. DLIO writes a run into Hydra's run folder unless `output.folder` is set."""


@dataclass(frozen=True)
class Reason:
    """Why a key is removed from a configuration, and its values that request nothing and need no note."""

    text: str
    harmless: tuple[Any, ...] = (None, False, [])

    def is_harmless(self, value: Any) -> bool:
        """Whether the value, or each one in a mapping, requests nothing."""
        if isinstance(value, Mapping):
            return all(self.is_harmless(item) for item in value.values())
        return value in self.harmless


NO_EFFECT = {
    "hydra": Reason("dlemu uses hydra only to compose settings; a run's folder is output.folder"),
    "profiling": Reason("dlemu records device and host itself", (None, "none", [])),
    "workflow.profiling": Reason("dlemu records device and host itself"),
    "workflow.debug": Reason("there is no debug workflow"),
    **dict.fromkeys(("logging", "output.log_file"), Reason("the log is log.txt in the run's folder")),
    "dataset.record_element_bytes": Reason("it follows from dataset.record_element_type"),
    "dataset.num_files_generated": Reason("the number of files is read from the dataset on disk", (None, 0)),
    "dataset.total_disk_bytes": Reason("the size of the dataset follows from its files", (None, 0)),
    "dataset.keep_files": Reason("dlemu never deletes a dataset", (None, True)),
    "dataset.generation_buffer_size": Reason("files are generated in pieces that fit the processor's cache"),
    "dataset.parquet.use_s3dlio_gen": Reason("dlemu generates the files itself"),
    "dataset.parquet.generation_batch_size": Reason("files are generated in pieces that fit the processor's cache"),
    "dataset.skip_listing": Reason("only rank 0 lists the dataset, once"),
    "dataset.listing_validation_interval": Reason("only rank 0 lists the dataset, once"),
    "reader.read_type": Reason("a sample is read when its batch is made", (None, "on_demand")),
    "reader.file_access": Reason("how files are shared follows from dataset.num_samples_per_file"),
    "reader.dont_use_mmap": Reason("files are mapped into memory only by dataset.format=mmap_indexed_binary"),
    "reader.data_loader_sampler": Reason("each loader has its own sampler"),
    **{
        f"reader.{key}": Reason("DLIO's reader has no such key; the section storage says where the data is")
        for key in (
            *("storage_library", "storage_root", "storage_options", "data_loader_root", "endpoint_uris"),
            *("load_balance_strategy", "storage_type", "protocol"),
        )
    },
    "reader.shuffle": Reason("reader.file_shuffle and reader.sample_shuffle shuffle: off, seed or random"),
    "reader.seed": Reason("train.seed is the seed of the shuffles"),
    "reader.checkpoint_folder": Reason("checkpoint.checkpoint_folder says where checkpoints are"),
    "reader.write_threads": Reason("files are generated by as many processes as there are ranks", (None, 0, 1)),
    "storage.post_generation_settle_seconds": Reason("dlemu waits for no storage to settle after datagen", (None, 0)),
    "dataset.data_gen_method": Reason("dlemu generates the files itself", (None, "auto")),
    "dataset.parquet.partition_by": Reason("files are not split into folders by a column"),
    **{
        f"dataset.{key}": Reason("DLIO's dataset has no such key; the section storage says where the data is")
        for key in ("storage_type", "protocol", "storage_library", "storage_root", "storage_options")
    },
    "generator": Reason("files are generated by as many processes as there are ranks"),
    "checkpoint.ksm": Reason("the memory of a checkpoint is not merged"),
}
"""Key, or section with all its keys -> why it has no effect."""

_ENDPOINTS = ("storage.endpoint_uris", "storage.use_mpi_endpoint_distribution", "storage.load_balance_strategy")
NO_EFFECT_ON_FOLDERS = {key: Reason("it is for object storage") for key in ("storage.storage_options", *_ENDPOINTS)}
"""Key -> why it has no effect where the storage consists of folders."""
_LIBRARY = "storage.storage_options.storage_library"
LEFT_OUT = Reason("credentials are never saved in a run's files; give them in the environment")
_BYTES = Reason("samples are shipped as bytes", (None, "uint8"))

NO_EFFECT_ON_OBJECTS = {
    _LIBRARY: Reason("dlemu reads with a client of its own, which docs/objects.md compares with libraries"),
    "storage.storage_options.decode_mode": Reason("reader.decode sets what is decoded", (None, "none")),
    "storage.storage_options.prefetch_window": Reason("reader.io_depth sets the requests in flight"),
    "storage.storage_options.prefetch_workers": Reason("reader.io_depth sets the requests in flight"),
    "storage.storage_options.stagger_workers": Reason("workers start with different batches"),
}
"""mlpstorage's option -> why it has no effect with s3."""

SECRET = re.compile(
    r"storage\.storage_options\..*(secret|passw|token|credential|access_?key|api_?key).*", re.IGNORECASE
)

RENAMED_VALUES = {
    ("reader", "data_loader"): {"native_dali": "dali"},
    ("dataset", "compression"): {"uncompressed": "none"},
    ("dataset", "format"): {"jpg": "jpeg", "tif": "tiff"},
}
"""Section and key -> value in DLIO or in common use -> value here."""

OF_SOME_LOADERS = {
    "reader.computation_threads": Reason("the workers that read a sample also process it", (None, 1)),
    "reader.transfer_size": Reason(
        "files are read by the calls of their usual library, which sets their size; reader.engine=fast supports it",
        (None, 0),
    ),
    "reader.shuffle_size": Reason("shuffles are over the whole dataset, not a window", (None, 1024)),
}
"""Key -> why it has no effect with a loader that does not declare that it uses it; the defaults are harmless."""

PLUG_INS = {
    ("reader", "data_loader"): LOADERS,
    ("dataset", "format"): "datagen.formats",
    ("train", "compute"): "dlemu.accelerators",
}
"""Section and key whose value names a plug-in -> package of the built-in ones."""


UNSUPPORTED = {
    **{key: Reason("requests go to one endpoint, storage.storage_options.endpoint_url") for key in _ENDPOINTS},
    "dataset.parquet.read_mode": Reason("row groups are read whole", (None, "row_group")),
    "reader.transformed_record_dims": Reason("dataset.record_length_bytes_resize sets the bytes shipped"),
    "reader.transformed_record_element_type": _BYTES,
    "reader.reader_classname": Reason("a reader of your own is a dotted name in dataset.format"),
    "reader.data_loader_classname": Reason(
        "a loader of your own is a dotted name in reader.data_loader", (None, "torch.utils.data.DataLoader")
    ),
    "checkpoint.checkpoint_mechanism_classname": Reason("there is one way to write a checkpoint"),
}
"""Key, or section with all its keys -> what dlemu has instead. Ignoring it silently would change data or meaning."""


class SettingTraits(Protocol):
    """The part of a loader's traits that concerns settings, as this package may not import dlemu.loaders."""

    def settings_used(self, dataset_format: str) -> Collection[str]:
        """Return which of OF_SOME_LOADERS affect this loader."""

    def reads_files(self, dataset_format: str) -> bool:
        """Return whether the loader itself opens and reads files of a format."""

    def problems(self, workload: Workload) -> list[str]:
        """Return what the workload requires that the loader can't do."""


def renamed(path: KeyPath, value: Any) -> KeyPath:
    """Return the path here of a key in DLIO; `model: NAME` is a short form."""
    if not path:
        return path
    if path == ("model",) and not isinstance(value, Mapping):
        return ("model", "name")
    path = (RENAMED_SECTIONS.get(path[0], path[0]), *path[1:])
    key = ".".join(path)
    return tuple(RENAMED_KEYS[key].split(".")) if key in RENAMED_KEYS else path


def is_known(key: str) -> bool:
    path = renamed(tuple(key.split(".")), None)
    above = [path[:length] for length in range(1, len(path))]
    named = {".".join(place) for place in (*above, path)}
    if _default(path) is not None or named & {*NO_EFFECT, *UNSUPPORTED, "storage.storage_options"}:
        return True
    return any(isinstance(_default(place), Duration) for place in above)  # a parameter of a random time


def translated(tree: Mapping[str, Any], *, received: bool = False) -> dict[str, Any]:
    """Return the mapping with values as the schema requires them, and with `notes` and `unsupported` filled in.

    A null requests the default of a number, a time or a list; for words it is "none" or "null", as YAML reads these.
    `off`, which YAML reads as false, is a shuffle's value. If `received` from an unknown source, no module that it
    names is imported. Raises UserError where the loader or the format is null.
    """
    tree = _with_our_values(tree)
    problems = list(_nameless(tree))
    if problems:
        raise UserError(joined_problems(problems))
    removed = _Removed(tree, received=received)
    left = _without(tree, (), removed)
    reader = left.get("reader")
    if isinstance(reader, dict):
        reader.update({key: "off" for key in ("file_shuffle", "sample_shuffle") if reader.get(key) is False})
    return {**left, **removed.texts()}


def _with_our_values(tree: Mapping[str, Any]) -> dict[str, Any]:
    ours = dict(tree)
    for (section, key), values in RENAMED_VALUES.items():
        given = ours.get(section)
        if isinstance(given, Mapping) and isinstance(given.get(key), str):
            ours[section] = {**given, key: values.get(given[key], given[key])}
    return ours


def _nameless(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem where a plug-in is null; null for other words is reported by the strict builder."""
    for (section, key), package in PLUG_INS.items():
        given = tree.get(section)
        if isinstance(given, Mapping) and key in given and given[key] is None:
            yield (
                f"{section}.{key} is null, which names nothing: wanted one of {', '.join(names(package))}, or the "
                f"dotted name of your own module; leave it out for {_default((section, key))}"
            )


class _Removed:
    """What was removed from one configuration; begins with the notes of a saved configuration."""

    def __init__(self, tree: Mapping[str, Any], *, received: bool) -> None:
        self._saved = {name: tree.get(name) or [] for name in ("notes", "unsupported")}
        self._notes: list[str] = []
        self._keys_by_reason: dict[str, list[str]] = {}
        storage_type = _value(tree, "storage", "storage_type")
        reader, data_format = ("data_loader", "engine"), _value(tree, "dataset", "format")
        loader, engine = (_value(tree, "reader", key) for key in reader)
        direct = _value(tree, "reader", "odirect") == "True" or FOLDER_TYPES.get(storage_type) != "posix"
        used = settings_used(loader, data_format, engine, direct=direct, received=received)
        unused = {key: reason for key, reason in OF_SOME_LOADERS.items() if key not in used}
        if storage_type in FOLDER_TYPES:
            unused |= NO_EFFECT_ON_FOLDERS
        else:
            unused |= NO_EFFECT_ON_OBJECTS
            if engine == "library" and _option(tree, "storage_library") in LIBRARIES_OF_OBJECTS:
                del unused[_LIBRARY]
        self._no_effect = NO_EFFECT | unused

    def takes(self, key: str, value: Any) -> bool:
        """Return whether the key is DLIO's, without a counterpart here; note it if its value requests something."""
        if reason := LEFT_OUT if SECRET.fullmatch(key) else self._no_effect.get(key):
            self._note(key, value, reason)
        elif reason := UNSUPPORTED.get(key):
            if not reason.is_harmless(value):
                self._keys_by_reason.setdefault(reason.text, []).append(key)
        else:
            return False
        return True

    def texts(self) -> dict[str, Any]:
        """Return both lists, saved sentences first; none is repeated."""
        unsupported = [f"{', '.join(keys)}: not supported yet: {text}" for text, keys in self._keys_by_reason.items()]
        new = {"notes": self._notes, "unsupported": unsupported}
        # A saved value that is not a list is left to the strict builder, which reports it.
        return {
            name: [*saved, *(text for text in new[name] if text not in saved)] if isinstance(saved, list) else saved
            for name, saved in self._saved.items()
        }

    def _note(self, key: str, value: Any, reason: Reason) -> None:
        if "." not in key and isinstance(value, Mapping):
            for name, item in value.items():
                self._note(f"{key}.{name}", item, reason)
        elif not reason.is_harmless(value):
            self._notes.append(f"{key} has no effect: {reason.text}")


def _value(tree: Mapping[str, Any], section: str, key: str) -> str:
    given = tree.get(section)
    value = given.get(key) if isinstance(given, Mapping) else None
    return str(_default((section, key)) if value is None else value)


def _option(tree: Mapping[str, Any], name: str) -> Any:
    storage = tree.get("storage")
    options = storage.get("storage_options") if isinstance(storage, Mapping) else None
    return options.get(name) if isinstance(options, Mapping) else None


def _without(tree: Mapping[str, Any], above: KeyPath, removed: _Removed) -> dict[str, Any]:
    left: dict[str, Any] = {}
    for key, value in tree.items():
        path = (*above, str(key))
        if removed.takes(".".join(path), value) or (value is None and _may_be_null(path)):
            continue
        left[str(key)] = _without(value, path, removed) if isinstance(value, Mapping) else value
    return left


def _may_be_null(path: KeyPath) -> bool:
    """Whether the schema has this key and its value is not a word; other nulls are left to the strict builder."""
    default = _default(path)
    return default is not None and not (isinstance(default, str) and default)


def _default(path: KeyPath) -> Any:
    section: Any = tree()()
    for name in path:
        if not is_dataclass(section) or name not in [field.name for field in fields(section)]:
            return None
        section = getattr(section, name)
    return section


def settings_used(
    data_loader: str, dataset_format: str, engine: str, *, direct: bool = False, received: bool = False
) -> Collection[str]:
    """Return which of OF_SOME_LOADERS affect this loader with this engine; an unknown loader is reported elsewhere.

    Reads that bypass the page cache (`direct`) are not made by a library, so their size can be set. If `received`, the
    module of a user's own loader is not imported.
    """
    transfers = "reader.transfer_size"
    traits: type[SettingTraits] | None
    try:
        traits = (built_in if received else companion)(LOADERS, data_loader, "Traits", None)
    except UserError:
        return ()
    loader = None if traits is None else traits()
    used = (transfers,) if loader is None else loader.settings_used(dataset_format)
    by_library = engine == "library" or (engine == "matched" and not direct)
    if by_library and not (loader and loader.reads_files(dataset_format)):
        return [key for key in used if key != transfers]
    return used
