"""A workload as DLIO 2.x's config.yaml, and as overrides relative to the shipped workload of that name."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from dlemu.config.duration import Duration
from dlemu.config.published import published
from dlemu.config.schema import Checkpoint, Model, Workload

OWN_FOLDER = "dlemu"
"""Subfolder for dlemu's own files, inside the folder that gets DLIO's files (`dlio_benchmark`)."""

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
