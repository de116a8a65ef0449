"""A workload in DLIO 2.x's terms: as its config.yaml, as its overrides.yaml, and as a workload file for DLIO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import yaml

from datagen.errors import UserError
from dlemu.config.dump import published
from dlemu.config.duration import Duration
from dlemu.config.overrides import override
from dlemu.config.schema import Checkpoint, Model, Workload
from dlemu.config.translate import RENAMED_VALUES

OWN_FOLDER = "dlemu"  # subfolder for dlemu's own files in the folder of DLIO's files (`dlio_benchmark`)
LOG = "dlio.log"

_SECTIONS = ("workflow", "dataset", "reader", "train", "evaluation", "checkpoint", "metric", "storage")
# Fields of `model.transformer` that DLIO has.
_TRANSFORMER_KEYS = ("vocab_size", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_kv_heads")
# DLIO's settings of `checkpoint`: of a training run; of a checkpoint run; and more of both, if changed.
_TRAINING_CHECKPOINT_KEYS = (
    "checkpoint_folder", "checkpoint_after_epoch", "epochs_between_checkpoints", "steps_between_checkpoints",
    "type", "fsync",
)  # fmt: skip
_CHECKPOINT_RUN_KEYS = (
    "checkpoint_folder", "time_between_checkpoints", "num_checkpoints_write", "num_checkpoints_read", "fsync",
)  # fmt: skip
_CHECKPOINT_KEYS_IF_CHANGED = ("mode", "rank_sync", "recovery_rank_shift", "randomize_tensor")
_DLIO_CHECKPOINT_KEYS = {*_TRAINING_CHECKPOINT_KEYS, *_CHECKPOINT_RUN_KEYS, *_CHECKPOINT_KEYS_IF_CHANGED}
_DLEMU_KEYS: dict[str, tuple[str, ...]] = {  # section -> settings that only dlemu has
    "dataset": ("compressibility", "seed", "record_length_bytes_quantiles", "source"),
    "reader": (
        "engine", "decode", "evict_page_cache", "page_cache_percent", "verify", "nice", "preprocess", "tensors",
        "tensor_bytes", "worker_streams", "range_bytes", "io_depth",
    ),
    "train": ("synchronous", "step_cpu_time"),
    "metric": ("ceiling_seconds", "scaling_seconds", "cached", "verdict"),
    "checkpoint": tuple(key for key in vars(Checkpoint()) if key not in _DLIO_CHECKPOINT_KEYS),
}  # fmt: skip
_DLIO_VALUES: dict[tuple[str, str], tuple[str, ...]] = {  # setting -> DLIO's values, from its enumerations
    ("reader", "data_loader"): ("pytorch", "tensorflow", "dali"),
    ("dataset", "format"): (
        "tfrecord", "hdf5", "csv", "npz", "npy", "jpeg", "png",
        "indexed_binary", "mmap_indexed_binary", "synthetic", "parquet",  # parquet only in MLCommons' fork for v3.0
    ),
    ("dataset", "compression"): ("none", "gzip", "zip"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DlioFolders:
    """The folders for DLIO's files of one run: `folder` gets the results and dlio.log."""

    folder: str
    config_folder: str | None
    """Folder of config.yaml, hydra.yaml and overrides.yaml; None: they are not written."""
    overrides: tuple[str, ...] | None = None
    """Contents of overrides.yaml; None: the settings that differ from those of the shipped workload."""


def only_checkpoints(workload: Workload) -> bool:
    return workload.workflow.checkpoint and not workload.workflow.train


def dlio_workload(workload: Workload) -> dict[str, Any]:
    """Return the `workload` mapping of DLIO's config.yaml, without dataset and reader for a checkpoint run."""
    workload = published(workload)
    tree: dict[str, Any] = {"model": _model(workload.model), "framework": workload.framework}
    settings = _to_plain(workload.checkpoint)
    changed = [key for key in _CHECKPOINT_KEYS_IF_CHANGED if settings[key] != getattr(Checkpoint, key)]
    if only_checkpoints(workload):
        tree["workflow"] = {"generate_data": workload.workflow.generate_data, "train": False, "checkpoint": True}
        tree["checkpoint"] = {key: settings[key] for key in (*_CHECKPOINT_RUN_KEYS, *changed)}
        return tree
    for name in _SECTIONS:
        dlemu_keys = _DLEMU_KEYS.get(name, ())
        section = _to_plain(getattr(workload, name))
        tree[name] = {key: value for key, value in section.items() if key not in dlemu_keys}
    tree["checkpoint"] = {key: settings[key] for key in (*_TRAINING_CHECKPOINT_KEYS, *changed)}
    return tree


def _model(model: Model) -> dict[str, Any]:
    tree: dict[str, Any] = {"name": model.name, "type": model.type}
    if not model.has_layers:
        tree["model_size"] = model.model_size_bytes
        return tree
    split = model.parallelism
    parallelism = {"pipeline": split.pipeline, "tensor": split.tensor, "zero_stage": split.zero_stage}
    if split.data > 0:
        parallelism["data"] = split.data
    if split.expert > 1:
        parallelism["expert"] = split.expert
    for key in ("num_layers", "model_datatype", "optimizer_datatype"):
        tree[key] = getattr(model, key)
    tree["parallelism"] = parallelism
    if model.type != "transformer":
        tree["model_size"] = model.model_size_bytes
    if model.layer_parameters or model.optimization_groups:  # DLIO's older description of layers
        tree["layer_parameters"] = list(model.layer_parameters)
        tree["optimization_groups"] = list(model.optimization_groups)
    else:
        sizes = _to_plain(model.transformer)
        tree["transformer"] = {key: size for key, size in sizes.items() if key in _TRANSFORMER_KEYS or size}
    return tree


def _to_plain(value: Any) -> Any:
    """Return a section as a mapping, or a setting's value as in DLIO's YAML."""
    if isinstance(value, Duration):  # DLIO has no `empirical` durations and would sleep 0 s, so write the mean
        return value.mean if value.type == "empirical" else value.to_value()
    if is_dataclass(value):
        return {field.name: _to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # record_length_bytes is a whole number in DLIO's files
    return value


def dlio_overrides(workload: Workload, base: Workload) -> list[str]:
    """Return DLIO's overrides.yaml: the workload's name in DLIO, and each setting that differs from `base`."""
    overrides = [f"workload={_name_in_dlio(workload)}"]
    tree, base_tree = dlio_workload(workload), dlio_workload(base)
    for section in ("model", *_SECTIONS):
        base_section = base_tree.get(section, {})
        for key, value in tree.get(section, {}).items():
            if value != base_section.get(key):
                overrides.append(override(("++workload", section, key), value))
    return overrides


def _name_in_dlio(workload: Workload) -> str:
    """Return MODEL_ACCELERATOR, such as unet3d_h100: DLIO has a workload file per accelerator."""
    return f"{workload.model.name}_{workload.accelerator}" if workload.accelerator else workload.model.name


def dlio_yaml(workload: Workload) -> str:
    """Return the text of a DLIO workload file; comments at its top list the settings that DLIO does not have.

    Raises UserError for a loader, a format or a compression that DLIO does not have.
    """
    by_tensorflow = workload.dataset.format == "tfrecord" and workload.framework == "tensorflow"
    if by_tensorflow and workload.reader.data_loader in ("pytorch", "threads"):
        # DLIO reads tfrecord only with TensorFlow; without it on this host, dlemu has replaced the loader.
        workload = replace(workload, reader=replace(workload.reader, data_loader="tensorflow"))
    tree = dlio_workload(workload)
    if "model_size" in tree["model"]:
        # DLIO 2.x reads `model_size_bytes`, older versions `model_size`.
        tree["model"]["model_size_bytes"] = tree["model"]["model_size"]
    if not only_checkpoints(workload):
        for (section, key), values in _DLIO_VALUES.items():
            value = getattr(getattr(workload, section), key)
            if value not in values:
                raise UserError(f"{section}.{key} is {value!r}, which DLIO does not have: wanted {', '.join(values)}")
        _adapt_training_sections(tree)
    name = _name_in_dlio(workload)
    lines = [
        f"written by dlemu; with this file at DIR/workload/{name}.yaml:",
        f"  mpirun -np {workload.ranks} dlio_benchmark --config-dir DIR workload={name}",
    ]
    if changed := list(_settings_not_in_dlio(workload)):
        lines.append("DLIO has no setting for these, which were not dlemu's defaults: " + ", ".join(changed))
    return "".join(f"# {line}\n" for line in lines) + yaml.safe_dump(tree, sort_keys=False)


def _adapt_training_sections(tree: dict[str, Any]) -> None:
    """Change the sections of a training workload in place to those that DLIO reads."""
    dataset, reader = tree["dataset"], tree["reader"]
    for name in ("hdf5", "parquet"):
        if dataset["format"] != name:
            del dataset[name]
    if not reader["transfer_size"]:
        del reader["transfer_size"]  # DLIO takes 0 to mean unbuffered
    # dlemu's loader `dali` is DLIO's `native_dali`; DLIO's `dali` has readers in Python.
    for dlio_loader, dlemu_loader in RENAMED_VALUES["reader", "data_loader"].items():
        if reader["data_loader"] == dlemu_loader:
            reader["data_loader"] = dlio_loader
    # DLIO reads the excluded steps from `output`, and the AU threshold from `metric`.
    tree["output"] = {"metric": {key: tree["metric"].pop(key) for key in ("exclude_start_steps", "exclude_end_steps")}}


def _settings_not_in_dlio(workload: Workload) -> Iterator[str]:
    """Yield KEY=VALUE for each setting, and each size of the model, that DLIO lacks and that is not the default."""
    model = workload.model
    for key, size in vars(model.transformer).items():
        if size and key not in _TRANSFORMER_KEYS:
            yield f"model.transformer.{key}={size}"
    if model.parallelism.expert > 1:
        yield f"model.parallelism.expert={model.parallelism.expert}"
    for name in ("checkpoint",) if only_checkpoints(workload) else _DLEMU_KEYS:
        section, defaults = getattr(workload, name), getattr(Workload(), name)
        for key in _DLEMU_KEYS[name]:
            if getattr(section, key) != getattr(defaults, key):
                yield override((name, key), getattr(section, key))
