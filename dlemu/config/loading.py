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
from datagen.storage.storage_base import DIRECT_TYPES
from datagen.withheld import scrubbed
from dlemu.config.overrides import parse
from dlemu.config.schema import Storage, Workload, plain, replaced, to_workload
from dlemu.config.schema import tree as settings_tree
from dlemu.config.translate import MODULES, KeyPath, Layer, layer, merged, put, translated
from dlemu.config.validate import check, check_folder, check_model_name
from dlemu.config.workload_files import SUFFIX, compose_workload, read_plain, resolve, workload_names

DEFAULT_WORKLOAD = "default"
LOADER, FORMAT, NAME = ("reader", "data_loader"), ("dataset", "format"), ("model", "name")
SCALE, ACCELERATOR = ("scale",), ("accelerator",)
PAIR = ("reader", "batch_size"), ("train", "computation_time")  # what an accelerator sets
NOT_INSTALLED = "TensorFlow is not installed"  # begins the note that another loader reads in place of TensorFlow's
OF_OWN_DATA = (  # settings of `dataset` that the files themselves determine if dataset.source=folder
    *("num_files_train", "num_files_eval", "num_subfolders_train", "num_subfolders_eval", "num_samples_per_file"),
    *("record_length_bytes", "record_length_bytes_stdev", "record_length_bytes_quantiles", "record_dims"),
    "compression",
)
OF_BASE = (  # sections that a new workload takes from its `base`: they determine what a run reads and writes, and when
    *("ranks", "accelerator", "accelerators", "scale", "scales"),
    *("model", "dataset", "reader", "train", "metric", "workflow", "checkpoint"),
)


def load_received(path: str) -> Workload:
    """Build the workload in a result's config.yaml, without other files, references or imports; raises UserError.

    A section that no installed kind of job declares is kept, as its kind may be installed elsewhere.
    """
    tree = _resolved(path, layer((), read_plain(path)), [])
    sections = translated(tree, received=True)
    installed = settings_tree().__dataclass_fields__
    foreign = {name: value for name, value in sections.items() if isinstance(value, Mapping) and name not in installed}
    settings = build(settings_tree(), {name: value for name, value in sections.items() if name not in foreign})
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
    selected, settings = parse(overrides)
    names = workload_names(config_dir)
    for setting in settings:
        name = str(setting.value).replace("-", "_")
        if setting.path == ("model",) and name in names and not selected:
            raise UserError(f"{setting.text} only names the results: wanted workload={name}")
    choice = selected or (base.model.name if base and base.model.name in names else DEFAULT_WORKLOAD)
    file = layer((), compose_workload(choice, config_dir))
    given = [entry for setting in settings for entry in layer(setting.path, setting.value)]
    if base is not None and (not selected or dict(file).get(NAME, _stem(choice)) == base.model.name):
        # The base has the values of its accelerator and scale: naming these again would overwrite what it changed.
        given = [entry for entry in given if entry not in ((ACCELERATOR, base.accelerator), (SCALE, base.scale))]
        names_of_base = [name for name in OF_BASE if name != "dataset" or SCALE not in dict(given)]
        for path, value in layer((), {name: plain(getattr(base, name)) for name in names_of_base}):
            if path not in MODULES or is_built_in(MODULES[path], value):  # no other module is imported
                file.append((path, value))
    file_values, given_values = dict(file), dict(given)
    tree = _resolved(choice, file, given)
    if SCALE not in given_values:
        _check_recorded_scale(choice, tree)
    keeps_files_loader = LOADER not in given_values
    note = _replace_tensorflow(tree) if keeps_files_loader and file_values.get(LOADER) == "tensorflow" else ""
    try:
        built = build(settings_tree(), translated(tree))
        # If a file names a scale itself, its values may be those of that scale, and those of full size are unknown.
        if built.scale and SCALE in given_values and not file_values.get(SCALE):
            unscaled = _resolved(choice, file, [entry for entry in given if entry[0] != SCALE])
            put(unscaled, LOADER, built.reader.data_loader)
            full = build(settings_tree(), translated(unscaled))
            # Samples of the user's own files have the size that they have, whatever the scale.
            full_size = {} if full.dataset.source == "folder" else replaced(full, built)
            built = replace(built, scales={**built.scales, "": full_size})
        workload = to_workload(built, {})
        if workload.storage.storage_root != Storage.storage_root:
            check_folder(workload, "storage.storage_root", workload.storage.storage_root)
        workload = _with_folders_resolved(workload)
        is_of_folder = choice.endswith(SUFFIX) or ("dataset", "source") in file_values
        workload = _with_own_data(workload, given_values, file_values if is_of_folder else {})
        workload = replace(workload, notes=tuple(dict.fromkeys((*workload.notes, *filter(None, [note])))))
        check(workload)
        check_model_name(workload.model.name)
    except UserError as error:
        options = {path[-1]: value for path, value in layer((), tree) if path[:2] == ("storage", "storage_options")}
        raise UserError(scrubbed(str(error), options)) from None
    return workload


def _replace_tensorflow(tree: dict[str, Any]) -> str:
    """Choose another loader if TensorFlow's can't read the dataset here; return the note that says so, or nothing."""
    if find_spec("tensorflow") is None:
        reason = NOT_INSTALLED
    elif dict(layer((), tree)).get(FORMAT) != "tfrecord":
        reason = "TensorFlow has a reader for tfrecord alone"
    else:
        return ""
    loader = "pytorch" if find_spec("torch") is not None else "threads"
    put(tree, LOADER, loader)
    return f"{reason}: reader.data_loader={loader} reads the same files"


def _with_own_data(workload: Workload, given: dict[KeyPath, Any], file: dict[KeyPath, Any]) -> Workload:
    """Return the workload with what is found in the user's own folder; `file` is empty for a workload of dlemu's."""
    data = workload.dataset
    if data.source != "folder":
        return workload
    from datagen.own_folder import FLAT, inspect_own_folder

    check_folder(workload, "dataset.data_folder", data.data_folder)
    if FORMAT not in given and FORMAT not in file:
        data = replace(data, format="")  # the files decide
    own = inspect_own_folder(data, workload.storage_spec)
    determined = [key for key in OF_OWN_DATA if key != "record_length_bytes" or data.format not in FLAT]
    if refused := [f"dataset.{key}" for key in determined if ("dataset", key) in given]:
        raise UserError(f"{data.data_folder} itself decides on these settings, leave them out: {', '.join(refused)}")
    return replace(workload, dataset=own.spec, notes=tuple(dict.fromkeys((*workload.notes, *own.notes))))


def _resolved(choice: str, file: Layer, given: Layer) -> dict[str, Any]:
    """Merge all layers, weakest first: the batch size and time of an accelerator, right below what names it.

    accelerator=h100 as an override: the file, h100's pair, entries of the scale, overrides.
    `accelerator: h100` in the file: h100's pair, the file, entries of the scale, overrides.
    """
    tree = merged([file, given])
    given_paths = {path for path, _ in given}
    entry = _table_entry(choice, tree, "accelerator", "accelerators")
    pair: Layer = [(path, entry[path[-1]]) for path in PAIR if path[-1] in entry]
    layers: list[Layer] = [
        [(NAME, _stem(choice))],
        *([file, pair] if ACCELERATOR in given_paths else [pair, file]),
        _scale_entries(choice, tree) if SCALE in given_paths else [],
        given,
    ]
    return resolve(merged(layers))


def _stem(choice: str) -> str:
    return os.path.basename(choice).removesuffix(SUFFIX)


def _scale_entries(choice: str, tree: dict[str, Any]) -> Layer:
    return layer((), _table_entry(choice, tree, "scale", "scales"))


def _check_recorded_scale(choice: str, tree: dict[str, Any]) -> None:
    """Raise UserError for a file with `scale` but none of its values: a full-size run must not be called small."""
    entries, values = _scale_entries(choice, tree), dict(layer((), tree))
    if entries and not any(values.get(path) == value for path, value in entries):
        name = tree["scale"]
        raise UserError(
            f"workload {choice!r} has scale: {name}, but none of that scale's values: in a file it only"
            f" records where they came from; remove it there and give scale={name} as an override"
        )


def _table_entry(choice: str, tree: dict[str, Any], key: str, section: str) -> dict[str, Any]:
    """Return the entry of `accelerators` or `scales` that the workload names; raises UserError if it has none."""
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


def _with_folders_resolved(workload: Workload) -> Workload:
    """Join the folders of data and checkpoints with the storage's root, which is then `./`: they are joined once."""
    storage = workload.storage
    checkpoint = workload.checkpoint
    return replace(
        workload,
        dataset=replace(workload.dataset, data_folder=storage.resolved(workload.dataset.data_folder)),
        checkpoint=replace(checkpoint, checkpoint_folder=storage.resolved(checkpoint.checkpoint_folder)),
        output=replace(workload.output, folder=os.path.expanduser(workload.output.folder)),
        storage=replace(storage, storage_root=Storage.storage_root if storage.has_paths else storage.storage_root),
        # `storage_type=direct`, or mlpstorage's `direct_fs`, means the same.
        reader=replace(workload.reader, odirect=workload.reader.odirect or storage.storage_type in DIRECT_TYPES),
    )
