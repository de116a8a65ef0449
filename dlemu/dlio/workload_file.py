"""A workload as a workload file for DLIO's own program, which then runs the same job."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import yaml

from datagen.errors import UserError
from dlemu.config.schema import Model, Workload
from dlemu.config.translate import RENAMED_VALUES
from dlemu.dlio.config import OWN_KEYS, TRANSFORMER_KEYS, dlio_workload, only_checkpoints

LOADERS = ("pytorch", "tensorflow", "dali")
FORMATS = (
    *("tfrecord", "hdf5", "csv", "npz", "npy", "jpeg", "png"),
    *("indexed_binary", "mmap_indexed_binary", "synthetic", "parquet"),
)
"""DLIO's formats (its enumeration `FormatType`); parquet is only in MLCommons' fork for v3.0."""
COMPRESSIONS = ("none", "gzip", "zip")
"""Compressions that both DLIO (its enumeration `Compression`) and dlemu have."""


def dlio_yaml(workload: Workload) -> str:
    """Return the file's text; settings that DLIO does not have are listed in comments at its top.

    Raises UserError for a loader, a format or a compression that DLIO does not have.
    """
    tree = dlio_workload(workload)
    if "model_size" in tree["model"]:
        # DLIO 2.x reads `model_size_bytes`, older versions `model_size`.
        tree["model"]["model_size_bytes"] = tree["model"]["model_size"]
    if not only_checkpoints(workload):
        _check(workload)
        _fit_training(tree)
    return _head(workload) + yaml.safe_dump(tree, sort_keys=False)


def _fit_training(tree: dict[str, Any]) -> None:
    """Change the sections of a training workload, in place, into those that DLIO reads."""
    if tree["dataset"]["format"] != "hdf5":
        del tree["dataset"]["hdf5"]
    if tree["dataset"]["format"] != "parquet":
        del tree["dataset"]["parquet"]
    if not tree["reader"]["transfer_size"]:
        del tree["reader"]["transfer_size"]  # DLIO takes 0 to mean unbuffered
    # DLIO may use one of our loaders' names for a different loader: its `dali` has its own readers in Python.
    theirs = {ours: theirs for theirs, ours in RENAMED_VALUES["reader", "data_loader"].items()}
    loader = tree["reader"]["data_loader"]
    tree["reader"]["data_loader"] = theirs.get(loader, loader)
    metric = tree["metric"]
    # DLIO reads the excluded steps from `output`, and the AU threshold from `metric`.
    tree["output"] = {"metric": {key: metric.pop(key) for key in ("exclude_start_steps", "exclude_end_steps")}}


def _check(workload: Workload) -> None:
    for key, value, known in (
        ("reader.data_loader", workload.reader.data_loader, LOADERS),
        ("dataset.format", workload.dataset.format, FORMATS),
        ("dataset.compression", workload.dataset.compression, COMPRESSIONS),
    ):
        if value not in known:
            raise UserError(f"{key} is {value!r}, which DLIO does not have: wanted one of {', '.join(known)}")


def _head(workload: Workload) -> str:
    name = f"{workload.model.name}_{workload.accelerator}" if workload.accelerator else workload.model.name
    lines = [
        f"written by dlemu; with this file at DIR/workload/{name}.yaml:",
        f"  mpirun -np {workload.ranks} dlio_benchmark --config-dir DIR workload={name}",
    ]
    own = _settings_not_in_dlio(workload)
    if own:
        lines.append("DLIO has no setting for these, which were not dlemu's defaults: " + ", ".join(own))
    return "".join(f"# {line}\n" for line in lines)


def _settings_not_in_dlio(workload: Workload) -> list[str]:
    """List the settings that DLIO does not have and that differ from their defaults."""
    settings = _model_settings_not_in_dlio(workload.model)
    for section, keys in OWN_KEYS.items():
        if only_checkpoints(workload) != (section == "checkpoint"):
            continue
        given, plain = getattr(workload, section), getattr(Workload(), section)
        for field in fields(given):
            if field.name in keys and getattr(given, field.name) != getattr(plain, field.name):
                settings.append(f"{section}.{field.name}={_override_text(getattr(given, field.name))}")
    return settings


def _model_settings_not_in_dlio(model: Model) -> list[str]:
    """List the transformer's numbers that DLIO does not have: without them it would save a different, smaller model."""
    shape = model.transformer
    own = [field.name for field in fields(shape) if field.name not in TRANSFORMER_KEYS]
    given = [f"model.transformer.{key}={getattr(shape, key)}" for key in own if getattr(shape, key)]
    expert = model.parallelism.expert
    return given + ([f"model.parallelism.expert={expert}"] if expert > 1 else [])


def _override_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
