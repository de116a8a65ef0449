"""The tree of all settings: sections that all jobs share, and sections that kinds of jobs declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, make_dataclass, replace
from functools import cache
from typing import Any, get_type_hints

from datagen.errors import UserError
from datagen.registry import companion, installed, names
from datagen.spec import build
from dlemu.config.schema import Workload

KINDS = "dlemu.jobs"
"""The package of the kinds of jobs, and the group of entry points for packages of other kinds."""
OWN = "kinds"
"""The field of `Workload` with the kinds' sections, which in YAML are next to the shared ones."""


SYNONYMS = {
    **dict.fromkeys(("num_gpus", "gpus", "ranks", "world_size", "nproc", "num_processes", "np", "n"), "ranks"),
    **dict.fromkeys(("num_accelerators", "max_accelerators", "accelerators"), "ranks"),
    **dict.fromkeys(("num_workers", "reader.num_workers"), "reader.read_threads"),
    "num_client_hosts": "the hosts on which mpirun or srun starts ranks (mpirun --host A,B -np RANKS dlemu train ...)",
    "checkpoint.enabled": "workflow.checkpoint",
    "model": "workload",
    "accelerator_type": "accelerator",
    "data_dir": "dataset.data_folder",
    "results_dir": "output.folder",
    "checkpoint_folder": "checkpoint.checkpoint_folder",
}
"""Key or option that other tools have -> the setting here, or what is there instead, for messages."""


@cache
def sections() -> dict[str, type[Any]]:
    """Return section name -> dataclass, for installed kinds of jobs that have settings; raises UserError.

    The module `settings` of a kind declares its section, a frozen dataclass: `SECTION = ("stat", StatSettings)`.
    """
    found: dict[str, type[Any]] = {}
    added = {name: entry.module for name, entry in installed(KINDS).items()}
    for package in (added.get(name, f"{KINDS}.{name}") for name in names(KINDS)):
        try:
            name, section = companion(KINDS, f"{package}.settings", "SECTION") or ("", None)
        except UserError as error:
            raise UserError(
                f"{package}, an installed kind of job, can't be imported: {error}; or uninstall it"
            ) from error
        if name in found or name in Workload.__dataclass_fields__:
            raise UserError(f"{package}.settings declares the settings {name!r}, which already exist: rename them")
        if section is not None:
            found[name] = section
    return found


@cache
def tree() -> Any:
    """Return a dataclass of all settings with the structure of the YAML."""
    hints = get_type_hints(Workload, include_extras=True)
    shared = [
        (part.name, hints[part.name], field(default=part.default, default_factory=part.default_factory))
        for part in fields(Workload)
        if part.name != OWN
    ]
    own = [(name, section, field(default_factory=section)) for name, section in sections().items()]
    # The module with the docstrings of the shared fields.
    at = {"__module__": Workload.__module__, "SYNONYMS": SYNONYMS}
    return make_dataclass("Workload", [*shared, *own], namespace=at, frozen=True, kw_only=True)


def to_workload(settings: Any, foreign: Mapping[str, Any]) -> Workload:
    """Convert a `tree` to a Workload, with the `foreign` sections; kinds' sections of defaults are left out."""
    shared = {part.name: getattr(settings, part.name) for part in fields(Workload) if part.name != OWN}
    set_here = ((name, getattr(settings, name)) for name in sections())
    own = {name: plain(value) for name, value in set_here if value != sections()[name]()}
    return Workload(**shared, kinds={**own, **foreign})


def replaced(full: Any, scaled: Any) -> dict[str, Any]:
    """Return the settings in `full`, a `tree`, that a scale replaced in `scaled`: whole values, section by section."""
    there = plain(scaled)
    return {
        key: {name: item for name, item in value.items() if item != there[key][name]}
        for key, value in plain(full).items()
        if isinstance(value, dict) and value != there[key] and key not in ("accelerators", "scales")
    }


def full_size(workload: Workload) -> Workload | None:
    """Return the workload with the shared sections as they are without its scale; None where they are not known."""
    if not workload.scale:
        return workload
    if (settings := workload.scales.get("")) is None:
        return None
    parts = {name: getattr(workload, name) for name in settings if name in Workload.__dataclass_fields__}
    whole = {name: build(type(part), plain(part) | settings[name], name) for name, part in parts.items()}
    return replace(workload, **whole)


def plain(value: Any) -> Any:
    """Return dataclasses as nested mappings, and all sequences as lists."""
    if hasattr(value, "to_value"):
        return value.to_value()
    if is_dataclass(value):
        return {part.name: plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
