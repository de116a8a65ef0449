"""Loads a frozen, checked Workload from layers of settings: a file, its tables, overrides. A later layer wins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from datagen.errors import UserError
from datagen.registry import is_built_in, nearest
from datagen.spec import build
from datagen.storage.storage_base import DIRECT_TYPES
from datagen.withheld import redact_message
from dlemu.config.overrides import parse
from dlemu.config.schema import Storage, Workload, full_size_values, plain, settings_class, to_workload
from dlemu.config.translate import MODULES, KeyPath, Layer, flattened, merged, put, translated
from dlemu.config.validate import check, check_folder, check_model_name
from dlemu.config.workload_files import SUFFIX, compose_workload, read_plain, resolve, workload_names

DEFAULT_WORKLOAD = "default"
LOADER = ("reader", "data_loader")
FORMAT = ("dataset", "format")
NAME = ("model", "name")
SCALE = ("scale",)
ACCELERATOR = ("accelerator",)
ACCELERATOR_KEYS = ("reader", "batch_size"), ("train", "computation_time")  # the settings of an accelerator
NOT_INSTALLED = "TensorFlow is not installed"  # start of the note that another loader is used
_COUNTS = ("num_files_train", "num_files_eval", "num_subfolders_train", "num_subfolders_eval", "num_samples_per_file")
_SHAPES = ("record_length_bytes", "record_length_bytes_stdev", "record_length_bytes_quantiles", "record_dims")
OWN_DATA_KEYS = (*_COUNTS, *_SHAPES, "compression")  # keys of `dataset` that a user's own files determine
_VARIANT = ("ranks", "accelerator", "accelerators", "scale", "scales")
# What `load` takes from a `base`: it determines what a run reads and writes, and when.
BASE_SECTIONS = (*_VARIANT, "model", "dataset", "reader", "train", "metric", "workflow", "checkpoint")


def load_received(path: str) -> Workload:
    """Return the workload in a result's config.yaml, without reading other files, references or imports.

    A section that no installed kind of job declares is kept: its kind may be installed elsewhere. Raises UserError.
    """
    sections = translated(_resolved(path, flattened((), read_plain(path)), []), received=True)
    known = settings_class().__dataclass_fields__
    foreign = {name: value for name, value in sections.items() if isinstance(value, Mapping) and name not in known}
    settings = build(settings_class(), {name: value for name, value in sections.items() if name not in foreign})
    workload = _with_storage_applied(to_workload(settings, foreign))
    check(workload)
    return workload


def load(overrides: Sequence[str], config_dir: str | None = None, *, base: Workload | None = None) -> Workload:
    """Return the workload that the overrides select and change. Raises UserError that lists all problems.

    `workload=NAME` selects a shipped workload or one in CONFIG_DIR/workload, `workload=FILE.yaml` any file. The layers
    from weakest to strongest: the file, the values of `accelerator=NAME`, those of `scale=NAME`, the other overrides.
    The settings of `base` replace the file's unless the overrides select another workload.
    """
    selected, settings = parse(overrides)
    names = workload_names(config_dir)
    for setting in settings:
        name = str(setting.value).replace("-", "_")
        if setting.path == ("model",) and name in names and not selected:
            raise UserError(f"{setting.text} only names the results: wanted workload={name}")
    choice = selected or (base.model.name if base is not None and base.model.name in names else DEFAULT_WORKLOAD)
    file_layer = flattened((), compose_workload(choice, config_dir))
    override_layer = [entry for setting in settings for entry in flattened(setting.path, setting.value)]
    if base is not None and (not selected or dict(file_layer).get(NAME, _stem(choice)) == base.model.name):
        # `base` already has the values of its accelerator and scale: to select them again would undo its changes.
        base_choices = (ACCELERATOR, base.accelerator), (SCALE, base.scale)
        override_layer = [entry for entry in override_layer if entry not in base_choices]
        file_layer += _layer_of_base(base, with_dataset=SCALE not in dict(override_layer))
    file_values, override_values = dict(file_layer), dict(override_layer)
    tree = _resolved(choice, file_layer, override_layer)
    if SCALE not in override_values:
        _check_recorded_scale(choice, tree)
    file_sets_tensorflow = file_values.get(LOADER) == "tensorflow" and LOADER not in override_values
    notes = _replace_tensorflow(tree) if file_sets_tensorflow else []
    try:
        workload = to_workload(_built(choice, tree, file_layer, override_layer), {})
        if workload.storage.storage_root != Storage.storage_root:
            check_folder(workload, "storage.storage_root", workload.storage.storage_root)
        workload = _with_storage_applied(workload)
        is_users_file = choice.endswith(SUFFIX) or ("dataset", "source") in file_values
        sets_format = FORMAT in override_values or (is_users_file and FORMAT in file_values)
        workload = _with_own_data(workload, override_values, sets_format=sets_format)
        workload = replace(workload, notes=tuple(dict.fromkeys((*workload.notes, *notes))))
        check(workload)
        check_model_name(workload.model.name)
    except UserError as error:  # its message may quote the storage's options, and these may be credentials
        options = {path[-1]: value for path, value in flattened((), tree) if path[:2] == ("storage", "storage_options")}
        raise UserError(redact_message(str(error), options)) from None
    return workload


def _layer_of_base(base: Workload, *, with_dataset: bool) -> Layer:
    """Return the settings that a new workload takes from its `base`; only built-in modules are taken."""
    sections = {name: plain(getattr(base, name)) for name in BASE_SECTIONS if name != "dataset" or with_dataset}
    entries = flattened((), sections)
    return [(path, value) for path, value in entries if path not in MODULES or is_built_in(MODULES[path], value)]


def _resolved(choice: str, file_layer: Layer, override_layer: Layer) -> dict[str, Any]:
    """Return all layers merged, with references resolved. The order of layers, weakest first:

    With accelerator=h100 as an override: the file, h100's values, the scale's, overrides.
    With `accelerator: h100` in the file: h100's values, the file, the scale's, overrides.
    """
    tree = merged([file_layer, override_layer])
    entry = _table_entry(choice, tree, "accelerator", "accelerators")
    accelerator_layer: Layer = [(path, entry[path[-1]]) for path in ACCELERATOR_KEYS if path[-1] in entry]
    override_values = dict(override_layer)
    layers = [accelerator_layer, file_layer]
    if ACCELERATOR in override_values:
        layers.reverse()
    if SCALE in override_values:
        layers.append(flattened((), _table_entry(choice, tree, "scale", "scales")))
    return resolve(merged([[(NAME, _stem(choice))], *layers, override_layer]))


def _stem(choice: str) -> str:
    return os.path.basename(choice).removesuffix(SUFFIX)


def _check_recorded_scale(choice: str, tree: dict[str, Any]) -> None:
    """Raise UserError for a file with `scale` but none of its values: a full-size run must not be called small."""
    entries = flattened((), _table_entry(choice, tree, "scale", "scales"))
    values = dict(flattened((), tree))
    if entries and not any(values.get(path) == value for path, value in entries):
        name = tree["scale"]
        raise UserError(
            f"workload {choice!r} has scale: {name}, but none of that scale's values: in a file it only"
            f" records where they came from; remove it there and give scale={name} as an override"
        )


def _table_entry(choice: str, tree: dict[str, Any], key: str, section: str) -> dict[str, Any]:
    """Return the entry of the table `section` that the setting `key` names, {} if it names none; raises UserError."""
    name = tree.get(key)
    if name in (None, ""):
        return {}
    table = tree.get(section)
    if not isinstance(table, dict) or not table:
        raise UserError(
            f"{key}={name}: workload {choice!r} has no {section}; leave {key} out, or add a table of {section}"
        )
    if str(name) not in table:
        names = ", ".join(filter(None, table))
        other = "; for another, set train.computation_time (seconds per step)" if key == "accelerator" else ""
        raise UserError(f"{key}={name} is not in workload {choice!r}: {nearest(str(name), table)}known: {names}{other}")
    entry = table[str(name)]
    return entry if isinstance(entry, dict) else {}


def _replace_tensorflow(tree: dict[str, Any]) -> list[str]:
    """Set another loader in `tree` if TensorFlow's can't read the dataset on this host; return notes on that."""
    if find_spec("tensorflow") is None:
        reason = NOT_INSTALLED
    elif dict(flattened((), tree)).get(FORMAT) != "tfrecord":
        reason = "TensorFlow has a reader for tfrecord alone"
    else:
        return []
    loader = "pytorch" if find_spec("torch") is not None else "threads"
    put(tree, LOADER, loader)
    return [f"{reason}: reader.data_loader={loader} reads the same files"]


def _built(choice: str, tree: dict[str, Any], file_layer: Layer, override_layer: Layer) -> Any:
    """Return the settings as a dataclass. If an override selects the scale, `scales['']` has the full-size values."""
    built = build(settings_class(), translated(tree))
    # A file that names a scale may already have that scale's values, so its full-size values are not known.
    if not built.scale or SCALE not in dict(override_layer) or dict(file_layer).get(SCALE):
        return built
    unscaled = _resolved(choice, file_layer, [entry for entry in override_layer if entry[0] != SCALE])
    put(unscaled, LOADER, built.reader.data_loader)
    full = build(settings_class(), translated(unscaled))
    # No scale changes the size of samples in the user's own files.
    full_size = {} if full.dataset.source == "folder" else full_size_values(full, built)
    return replace(built, scales={**built.scales, "": full_size})


def _with_storage_applied(workload: Workload) -> Workload:
    """Join the folders of data and checkpoints with the storage's root (once: it becomes `./`), and set odirect."""
    storage = workload.storage
    saves = workload.checkpoint
    direct = saves.odirect or storage.storage_type == "direct_fs"
    return replace(
        workload,
        dataset=replace(workload.dataset, data_folder=storage.resolved(workload.dataset.data_folder)),
        checkpoint=replace(saves, checkpoint_folder=storage.resolved(saves.checkpoint_folder), odirect=direct),
        output=replace(workload.output, folder=os.path.expanduser(workload.output.folder)),
        storage=replace(storage, storage_root=Storage.storage_root if storage.has_paths else storage.storage_root),
        # DLIO's `storage_type=direct` and mlpstorage's `direct_fs` mean reader.odirect; the second of checkpoints, too.
        reader=replace(workload.reader, odirect=workload.reader.odirect or storage.storage_type in DIRECT_TYPES),
    )


def _with_own_data(workload: Workload, override_values: dict[KeyPath, Any], *, sets_format: bool) -> Workload:
    """Return the workload with the properties of the user's own files; UserError for overrides of OWN_DATA_KEYS."""
    data = workload.dataset
    if data.source != "folder":
        return workload
    from datagen.own_folder import FLAT, inspect_own_folder

    check_folder(workload, "dataset.data_folder", data.data_folder)
    if not sets_format:
        data = replace(data, format="")  # the files determine it
    inspected = inspect_own_folder(data, workload.storage_spec)
    own_keys = [key for key in OWN_DATA_KEYS if key != "record_length_bytes" or data.format not in FLAT]
    if refused := [f"dataset.{key}" for key in own_keys if ("dataset", key) in override_values]:
        raise UserError(f"{data.data_folder} itself decides on these settings, leave them out: {', '.join(refused)}")
    return replace(workload, dataset=inspected.spec, notes=tuple(dict.fromkeys((*workload.notes, *inspected.notes))))
