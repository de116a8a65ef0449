"""A workload as DLIO 2.x's config.yaml, as its overrides, and as a workload file for DLIO's own program."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import yaml

from datagen.errors import UserError
from dlemu.config.dump import published
from dlemu.config.duration import Duration
from dlemu.config.schema import Checkpoint, Model, Workload
from dlemu.config.translate import RENAMED_VALUES

OWN_FOLDER = "dlemu"
"""Subfolder for dlemu's own files, inside the folder that gets DLIO's files (`dlio_benchmark`)."""
LOG = "dlio.log"

_SECTIONS = ("workflow", "dataset", "reader", "train", "evaluation", "checkpoint", "metric", "storage")


TRANSFORMER_KEYS = ("vocab_size", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_kv_heads")
"""Fields of `model.transformer` that DLIO knows."""
_CHECKPOINT_KEYS = {
    "time_between_checkpoints": None,
    "num_checkpoints_write": None,
    "num_checkpoints_read": None,
    "fsync": None,
    "mode": "default",
    "rank_sync": False,
    "recovery_rank_shift": False,
    "randomize_tensor": True,
}
"""Settings that DLIO's workloads without training have -> the value at which they are omitted; None: always written."""
_TRAINING_KEYS = (
    "checkpoint_folder",
    "checkpoint_after_epoch",
    "epochs_between_checkpoints",
    "steps_between_checkpoints",
    "type",
    "fsync",
)
OWN_KEYS = {
    "dataset": ("compressibility", "seed", "record_length_bytes_quantiles", "source"),
    "reader": (
        *("engine", "decode", "evict_page_cache", "page_cache_percent", "verify", "nice"),
        *("preprocess", "tensors", "tensor_bytes"),
    ),
    "train": ("synchronous", "step_cpu_time"),
    "checkpoint": tuple(sorted({field.name for field in fields(Checkpoint)} - {*_CHECKPOINT_KEYS, *_TRAINING_KEYS})),
    "metric": ("ceiling_seconds", "scaling_seconds", "cached", "verdict"),
}
"""Settings that DLIO does not have; only the config.yaml in dlemu's own folder has them."""
LOADERS = ("pytorch", "tensorflow", "dali")
FORMATS = (
    *("tfrecord", "hdf5", "csv", "npz", "npy", "jpeg", "png"),
    *("indexed_binary", "mmap_indexed_binary", "synthetic", "parquet"),
)
"""DLIO's formats (its enumeration `FormatType`); parquet is only in MLCommons' fork for v3.0."""
COMPRESSIONS = ("none", "gzip", "zip")
"""Compressions that both DLIO (its enumeration `Compression`) and dlemu have."""


@dataclass(frozen=True, kw_only=True)
class DlioFolders:
    """The folders for DLIO's files of one run: `folder` gets the results and dlio.log."""

    folder: str
    config_folder: str | None
    """Folder of config.yaml, hydra.yaml and overrides.yaml; None: they are not written."""
    overrides: tuple[str, ...] | None = None
    """Contents of overrides.yaml; None: the settings that differ from those of the shipped workload."""


def dlio_workload(workload: Workload) -> dict[str, Any]:
    """Return the `workload` mapping of DLIO's config.yaml; without dataset or reader if it only does checkpoints."""
    workload = published(workload)
    model = _model(workload.model)
    if only_checkpoints(workload):
        return {"model": model, "framework": workload.framework, **_checkpoint_sections(workload)}
    sections = {name: _section(getattr(workload, name), OWN_KEYS.get(name, ())) for name in _SECTIONS}
    sections["checkpoint"] = {key: sections["checkpoint"][key] for key in _TRAINING_KEYS}
    return {"model": model, "framework": workload.framework, **sections}


def only_checkpoints(workload: Workload) -> bool:
    """Return whether a workload saves and loads checkpoints and does nothing else."""
    return workload.workflow.checkpoint and not workload.workflow.train


def _model(model: Model) -> dict[str, Any]:
    named: dict[str, Any] = {"name": model.name, "type": model.type}
    if not model.has_layers:
        return named | {"model_size": model.model_size_bytes}
    cut, shape = model.parallelism, model.transformer
    parallelism = {"pipeline": cut.pipeline, "tensor": cut.tensor, "zero_stage": cut.zero_stage}
    parallelism |= {"data": cut.data} if cut.data > 0 else {}
    parallelism |= {"expert": cut.expert} if cut.expert > 1 else {}
    layers: dict[str, Any] = {"num_layers": model.num_layers, "model_datatype": model.model_datatype}
    layers |= {"optimizer_datatype": model.optimizer_datatype, "parallelism": parallelism}
    if model.type != "transformer":
        layers["model_size"] = model.model_size_bytes
    older = {key: list(getattr(model, key)) for key in ("layer_parameters", "optimization_groups")}
    if any(older.values()):
        return named | layers | older
    numbers = {field.name: getattr(shape, field.name) for field in fields(shape)}
    given = {key: value for key, value in numbers.items() if key in TRANSFORMER_KEYS or value}
    return named | layers | {"transformer": given}


def _checkpoint_sections(workload: Workload) -> dict[str, Any]:
    flow, saves = workload.workflow, workload.checkpoint
    folder = {"checkpoint_folder": saves.checkpoint_folder}
    given = {key: _plain(getattr(saves, key)) for key, left_out in _CHECKPOINT_KEYS.items()}
    return {
        "workflow": {"generate_data": flow.generate_data, "train": flow.train, "checkpoint": flow.checkpoint},
        "checkpoint": folder | {key: value for key, value in given.items() if value != _CHECKPOINT_KEYS[key]},
    }


def dlio_overrides(workload: Workload, base: Workload) -> list[str]:
    """Return DLIO's overrides.yaml: DLIO's name of the workload, and every setting that differs from `base`."""
    name = "_".join(filter(None, (workload.model.name, workload.accelerator)))
    wanted, given = dlio_workload(workload), dlio_workload(base)
    return [
        f"workload={name}",
        *(
            f"++workload.{section}.{key}={_override_text(value)}"
            for section in ("model", *_SECTIONS)
            for key, value in wanted.get(section, {}).items()
            if value != given.get(section, {}).get(key)
        ),
    ]


def dlio_hydra(run_folder: str, config_subfolder: str, overrides: list[str]) -> dict[str, Any]:
    """Return the part of hydra.yaml that gives the run's folder and the overrides."""
    return {
        "hydra": {
            "run": {"dir": run_folder},
            "mode": "RUN",
            "output_subdir": config_subfolder,
            "overrides": {"hydra": [f"hydra.run.dir={run_folder}"], "task": overrides},
            "job": {"name": "dlemu", "config_name": "config"},
        }
    }


def _section(section: Any, left_out: tuple[str, ...]) -> dict[str, Any]:
    return {field.name: _plain(getattr(section, field.name)) for field in fields(section) if field.name not in left_out}


def _plain(value: Any) -> Any:
    if isinstance(value, Duration):  # DLIO does not know `empirical`, and sleeps 0 s for an unknown type
        return value.mean if value.type == "empirical" else value.to_value()
    if is_dataclass(value):
        return _section(value, ())
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # record_length_bytes is a whole number in DLIO's files
    return value


def _override_text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_override_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_override_text(item) for item in value) + "]"
    return str(value)


def dlio_yaml(workload: Workload) -> str:
    """Return the file's text; settings that DLIO does not have are listed in comments at its top.

    Raises UserError for a loader, a format or a compression that DLIO does not have.
    """
    by_tensorflow = (workload.dataset.format, workload.framework) == ("tfrecord", "tensorflow")
    if by_tensorflow and workload.reader.data_loader in ("pytorch", "threads"):
        # DLIO reads it by TensorFlow alone, for which dlemu may have another loader where that is not installed.
        workload = replace(workload, reader=replace(workload.reader, data_loader="tensorflow"))
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
                value = getattr(given, field.name)
                settings.append(f"{section}.{field.name}={str(value).lower() if isinstance(value, bool) else value}")
    return settings


def _model_settings_not_in_dlio(model: Model) -> list[str]:
    """List the transformer's numbers that DLIO does not have: without them it would save a different, smaller model."""
    shape = model.transformer
    own = [field.name for field in fields(shape) if field.name not in TRANSFORMER_KEYS]
    given = [f"model.transformer.{key}={getattr(shape, key)}" for key in own if getattr(shape, key)]
    expert = model.parallelism.expert
    return given + ([f"model.parallelism.expert={expert}"] if expert > 1 else [])
