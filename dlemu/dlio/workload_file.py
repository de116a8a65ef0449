"""A workload as a file of DLIO's, from which DLIO's own program runs the same."""

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
"""DLIO's (`FormatType` of its enumerations); parquet is of MLCommons' copy for v3.0."""
COMPRESSIONS = ("none", "gzip", "zip")
"""Those of ours that DLIO has (`Compression` of the same)."""


def dlio_yaml(workload: Workload) -> str:
    """Return the file's text; what DLIO has no setting for is in comments at its head.

    Raises UserError for a loader, a format or a compression that DLIO does not have.
    """
    tree = dlio_workload(workload)
    if "model_size" in tree["model"]:
        # DLIO 2.x reads `model_size_bytes`, older ones `model_size`.
        tree["model"]["model_size_bytes"] = tree["model"]["model_size"]
    if not only_checkpoints(workload):
        _check(workload)
        _fit_training(tree)
    return _head(workload) + yaml.safe_dump(tree, sort_keys=False)


def _fit_training(tree: dict[str, Any]) -> None:
    """Write the sections of training as DLIO reads them."""
    if tree["dataset"]["format"] != "hdf5":
        del tree["dataset"]["hdf5"]
    if tree["dataset"]["format"] != "parquet":
        del tree["dataset"]["parquet"]
    if not tree["reader"]["transfer_size"]:
        del tree["reader"]["transfer_size"]  # DLIO takes a 0 as no buffer at all
    # DLIO's loader of the same name may be another: its `dali` has its own readers in Python.
    theirs = {ours: theirs for theirs, ours in RENAMED_VALUES["reader", "data_loader"].items()}
    loader = tree["reader"]["data_loader"]
    tree["reader"]["data_loader"] = theirs.get(loader, loader)
    metric = tree["metric"]
    # It reads the excluded steps from `output`, and the threshold from `metric`.
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
    own = _own(workload)
    if own:
        lines.append("DLIO has no setting for these, which were not dlemu's defaults: " + ", ".join(own))
    return "".join(f"# {line}\n" for line in lines)


def _own(workload: Workload) -> list[str]:
    """Name the settings that differ from their defaults and that DLIO does not have."""
    settings = _own_of_model(workload.model)
    for section, keys in OWN_KEYS.items():
        if only_checkpoints(workload) != (section == "checkpoint"):
            continue
        given, plain = getattr(workload, section), getattr(Workload(), section)
        for field in fields(given):
            if field.name in keys and getattr(given, field.name) != getattr(plain, field.name):
                settings.append(f"{section}.{field.name}={_word(getattr(given, field.name))}")
    return settings


def _own_of_model(model: Model) -> list[str]:
    """Name the numbers of a transformer that DLIO does not know: it would save another, smaller model."""
    shape = model.transformer
    own = [field.name for field in fields(shape) if field.name not in TRANSFORMER_KEYS]
    given = [f"model.transformer.{key}={getattr(shape, key)}" for key in own if getattr(shape, key)]
    expert = model.parallelism.expert
    return given + ([f"model.parallelism.expert={expert}"] if expert > 1 else [])


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
