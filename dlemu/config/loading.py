"""Loads a frozen, checked Workload from the user's overrides: layers of single settings, in which later ones win."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from datagen.errors import UserError
from datagen.registry import is_built_in, nearest
from datagen.spec import build
from datagen.storage.storage_base import is_direct
from datagen.withheld import scrubbed
from dlemu.config.overrides import parse
from dlemu.config.schema import Storage, Workload, plain, replaced, to_workload
from dlemu.config.schema import tree as settings_tree
from dlemu.config.translate import MODULES, KeyPath, Layer, layer, merged, put, translated
from dlemu.config.validate import check, check_folder, check_model_name
from dlemu.config.workload_files import SUFFIX, composed, read_plain, resolved, workload_names

DEFAULT_WORKLOAD = "default"

LOADER, FORMAT, NAME = ("reader", "data_loader"), ("dataset", "format"), ("model", "name")
NOT_INSTALLED = "TensorFlow is not installed"
"""How a note on another loader begins."""

OF_OWN_DATA = (
    *("num_files_train", "num_files_eval", "num_subfolders_train", "num_subfolders_eval"),
    *("num_samples_per_file", "record_dims"),
    *("record_length_bytes", "record_length_bytes_stdev", "record_length_bytes_quantiles", "compression"),
)
"""Settings of a dataset that are determined from the files if these are the user's own (dataset.source=folder)."""

OF_BASE = (
    *("ranks", "accelerator", "accelerators", "scale", "scales"),
    *("model", "dataset", "reader", "train", "metric", "workflow", "checkpoint"),
)
"""What determines what a run reads and writes, and when."""


def load_received(path: str) -> Workload:
    """Build the workload in a result's config.yaml, without other files, references or imports; raises UserError.

    A section that no installed kind of job declares is kept, as its kind may be installed elsewhere.
    """
    tree = resolved(merged(_layers(path, layer((), read_plain(path)), [])))
    given = translated(tree, received=True)
    foreign = {
        name: section
        for name, section in given.items()
        if isinstance(section, Mapping) and name not in settings_tree().__dataclass_fields__
    }
    settings = build(settings_tree(), {name: value for name, value in given.items() if name not in foreign})
    workload = _with_folders_resolved(to_workload(settings, foreign))
    check(workload)
    return workload


def load(overrides: Sequence[str], config_dir: str | None = None, *, base: Workload | None = None) -> Workload:
    """Return the workload that the overrides select and change: composed, resolved, built strictly and checked.

    `workload=NAME` takes a shipped workload or one of CONFIG_DIR/workload, `workload=FILE.yaml` any file. Later layers
    win: the file; what `accelerator=NAME` stands for; the entries of `scale=NAME`; other overrides. The settings of a
    workload `base` come over the file's, unless the overrides name another workload. Raises UserError that lists all
    problems.
    """
    named_workload, given_settings = parse(overrides)
    names = workload_names(config_dir)
    choice = named_workload or (base.model.name if base and base.model.name in names else DEFAULT_WORKLOAD)
    for setting in given_settings:
        named = str(setting.value).replace("-", "_")
        if setting.path == ("model",) and not named_workload and named in names:
            raise UserError(f"{setting.text} only names the results: wanted workload={named}")
    file = layer((), composed(choice, config_dir))
    given_layer = [setting for given in given_settings for setting in layer(given.path, given.value)]
    if base is not None and (not named_workload or dict(file).get(NAME, _stem(choice)) == base.model.name):
        same = (("accelerator",), base.accelerator), (("scale",), base.scale)
        given_layer = [setting for setting in given_layer if setting not in same]
        file += _settings_of(base, {path for path, _ in given_layer})
    tree = resolved(merged(_layers(choice, file, given_layer)))
    if ("scale",) not in dict(given_layer):
        _check_recorded_scale(choice, tree)
    note = ""
    loader = dict(file).get(LOADER) if LOADER not in dict(given_layer) else None
    is_installed = find_spec("tensorflow") is not None
    if loader == "tensorflow" and not (is_installed and dict(layer((), tree)).get(FORMAT) == "tfrecord"):
        other = "pytorch" if find_spec("torch") is not None else "threads"
        put(tree, LOADER, other)
        why = "TensorFlow has a reader for tfrecord alone" if is_installed else NOT_INSTALLED
        note = f"{why}: reader.data_loader={other} reads the same files"
    try:
        settings = build(settings_tree(), translated(tree))
        if settings.scale and ("scale",) in dict(given_layer) and not dict(file).get(("scale",)):
            # A file that names a scale of its own has values of that scale, perhaps.
            without = resolved(merged(_layers(choice, file, [each for each in given_layer if each[0] != ("scale",)])))
            put(without, LOADER, settings.reader.data_loader)
            full = build(settings_tree(), translated(without))
            own = full.dataset.source == "folder"  # samples of the user's own have the size that they have
            settings = replace(settings, scales={**settings.scales, "": {} if own else replaced(full, settings)})
        workload = to_workload(settings, {})
        if workload.storage.storage_root != Storage.storage_root:
            check_folder(workload, "storage.storage_root", workload.storage.storage_root)
        workload = _with_folders_resolved(workload)
        workload = _with_own_data(workload, dict(given_layer), {} if choice == DEFAULT_WORKLOAD else dict(file))
        workload = replace(workload, notes=tuple(dict.fromkeys((*workload.notes, *filter(None, [note])))))
        check(workload)
        check_model_name(workload.model.name)
    except UserError as error:
        options = {path[-1]: value for path, value in layer((), tree) if path[:2] == ("storage", "storage_options")}
        raise UserError(scrubbed(str(error), options)) from None
    return workload


def _settings_of(base: Workload, given: set[KeyPath]) -> Layer:
    """Return a workload's settings of what a run reads and writes, but for modules that are not built in."""
    parts = {name: plain(getattr(base, name)) for name in OF_BASE if name != "dataset" or ("scale",) not in given}
    return [
        (path, value) for path, value in layer((), parts) if path not in MODULES or is_built_in(MODULES[path], value)
    ]


def _with_own_data(workload: Workload, given: dict[KeyPath, Any], file: dict[KeyPath, Any]) -> Workload:
    """Return the workload with what is found in the user's own folder; `file` is empty for the default workload."""
    data = workload.dataset
    if data.source != "folder":
        return workload
    from datagen.own_folder import FLAT, inspect_own_folder

    check_folder(workload, "dataset.data_folder", data.data_folder)
    is_of_folder = ("dataset", "source") in file
    if FORMAT not in given | file:
        data = replace(data, format="")  # nobody chose it: the files decide
    if not is_of_folder or ("dataset", "num_files_train") not in file:
        data = replace(data, num_files_train=0)  # that of another dataset
    own = inspect_own_folder(
        data,
        workload.storage_spec,
        strict=is_of_folder or FORMAT in given,
        decodes=workload.reader.decode == "full",
    )
    stated = ("record_length_bytes",) if data.format in FLAT else ()
    if found := [f"dataset.{key}" for key in OF_OWN_DATA if ("dataset", key) in given and key not in stated]:
        raise UserError(f"{data.data_folder} itself decides on these settings, leave them out: {', '.join(found)}")
    return replace(workload, dataset=own.spec, notes=tuple(dict.fromkeys((*workload.notes, *own.notes))))


def _layers(choice: str, file: Layer, given_layer: Layer) -> list[Layer]:
    """Return all layers, weakest first: an accelerator's pair is right below the layer that names the accelerator."""
    everything = merged([file, given_layer])
    named = {path[0] for path, _ in given_layer if path in (("accelerator",), ("scale",))}
    pair = _accelerator_pair(choice, everything)
    return [
        [(NAME, _stem(choice))],
        *([file, pair] if "accelerator" in named else [pair, file]),
        _scale_entries(choice, everything) if "scale" in named else [],
        given_layer,
    ]


def _stem(choice: str) -> str:
    return os.path.basename(choice).removesuffix(SUFFIX)


def _accelerator_pair(choice: str, tree: dict[str, Any]) -> Layer:
    entry = _chosen(choice, tree, "accelerator", "accelerators")
    keys = {"batch_size": ("reader", "batch_size"), "computation_time": ("train", "computation_time")}
    return [(path, entry[key]) for key, path in keys.items() if key in entry]


def _scale_entries(choice: str, tree: dict[str, Any]) -> Layer:
    return layer((), _chosen(choice, tree, "scale", "scales"))


def _check_recorded_scale(choice: str, tree: dict[str, Any]) -> None:
    """Raise UserError for a file with `scale` but none of its values: a full-size run must not be called small."""
    entries, values = _scale_entries(choice, tree), dict(layer((), tree))
    if entries and not any(values.get(path) == value for path, value in entries):
        name = tree["scale"]
        raise UserError(
            f"workload {choice!r} has scale: {name}, but none of that scale's values: in a file it only"
            f" records where they came from; remove it there and give scale={name} as an override"
        )


def _chosen(choice: str, tree: dict[str, Any], key: str, section: str) -> dict[str, Any]:
    name = tree.get(key)
    if name in (None, ""):
        return {}
    table = tree.get(section)
    if not isinstance(table, dict) or not table:
        raise UserError(
            f"{key}={name}: workload {choice!r} has no {section}; leave {key} out, or add a table of {section}"
        )
    if str(name) not in table:
        known = ", ".join(filter(None, table))
        other = "; for another, give its seconds per step: train.computation_time=..." * (key == "accelerator")
        raise UserError(f"{key}={name} is not in workload {choice!r}: {nearest(str(name), table)}known: {known}{other}")
    entry = table[str(name)]
    return entry if isinstance(entry, dict) else {}


def _with_folders_resolved(workload: Workload) -> Workload:
    """Join the folders of data and checkpoints with the storage's root, which is then `./`: they are joined once."""
    storage, dataset, checkpoint = workload.storage, workload.dataset, workload.checkpoint
    output = workload.output
    root = Storage.storage_root if storage.has_paths else storage.storage_root
    return replace(
        workload,
        dataset=replace(dataset, data_folder=storage.resolved(dataset.data_folder)),
        checkpoint=replace(checkpoint, checkpoint_folder=storage.resolved(checkpoint.checkpoint_folder)),
        output=replace(output, folder=os.path.expanduser(output.folder)),
        storage=replace(storage, storage_root=root),
        # `storage_type=direct`, or mlpstorage's `direct_fs`, means the same.
        reader=replace(workload.reader, odirect=workload.reader.odirect or is_direct(storage.storage_type)),
    )
