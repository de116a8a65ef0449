"""A workload in the words of DLIO 2.x: its config.yaml, and the overrides that lead there from the shipped workload."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from dlemu.config.duration import Duration
from dlemu.config.schema import Workload

OWN_FOLDER = "dlemu"
"""Folder of dlemu's own files, below the one that DLIO's files are written to (`dlio_benchmark`)."""

OWN_KEYS = {
    "dataset": ("compressibility", "seed"),
    "reader": ("engine", "decode", "evict_page_cache", "verify", "nice"),
    "train": ("synchronous",),
    "metric": ("ceiling_seconds", "scaling_seconds", "cached", "verdict"),
}
"""Settings that DLIO does not have; the run's own config.yaml has them all."""
_SECTIONS = ("workflow", "dataset", "reader", "train", "evaluation", "checkpoint", "metric", "storage")


def dlio_workload(workload: Workload) -> dict[str, Any]:
    """Return the `workload` mapping of DLIO's config.yaml."""
    model = {"name": workload.model.name, "type": workload.model.type, "model_size": workload.model.model_size_bytes}
    sections = {name: _section(getattr(workload, name), OWN_KEYS.get(name, ())) for name in _SECTIONS}
    return {"model": model, "framework": workload.framework, **sections}


def dlio_overrides(workload: Workload, base: Workload) -> list[str]:
    """Return DLIO's overrides.yaml: the workload's name there, and every setting in which it differs from `base`."""
    name = "_".join(filter(None, (workload.model.name, workload.accelerator)))
    wanted, given = dlio_workload(workload), dlio_workload(base)
    return [
        f"workload={name}",
        *(
            f"++workload.{section}.{key}={_word(value)}"
            for section in ("model", *_SECTIONS)
            for key, value in wanted[section].items()
            if value != given[section][key]
        ),
    ]


def dlio_hydra(run_folder: str, config_subfolder: str, overrides: list[str]) -> dict[str, Any]:
    """Return the part of hydra.yaml that says where the run's files lie and what was asked for."""
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
    if isinstance(value, Duration):
        return value.to_value()
    if is_dataclass(value):
        return _section(value, ())
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # record_length_bytes is a whole number in DLIO's files
    return value


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_word(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_word(item) for item in value) + "]"
    return str(value)
