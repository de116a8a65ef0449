"""The tree of all settings: the sections that all jobs share, and those that kinds of jobs declare for themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from datagen.errors import UserError
from datagen.registry import companion, names
from dlemu.config.schema import Workload

KINDS = "dlemu.jobs"
"""The folder of the kinds of jobs, and the group of entry points that name packages of other kinds."""
OWN = "kinds"
"""The field of `Workload` that holds the kinds' sections, which are beside the shared ones in YAML."""


@cache
def sections() -> dict[str, type[Any]]:
    """Return the section of each installed kind of job that has one, by name; raises UserError.

    A kind is a folder of `dlemu.jobs`, or the package that an entry point of the group `dlemu.jobs` names. The module
    `settings` in it declares its section, a frozen dataclass of that module: `SECTION = ("stat", StatSettings)`.
    """
    found: dict[str, type[Any]] = {}
    installed = sorted({entry.module for entry in entry_points(group=KINDS)})
    for package in [*(f"{KINDS}.{name}" for name in names(KINDS)), *installed]:
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
    """Return a dataclass of all settings as YAML has them."""
    hints = get_type_hints(Workload, include_extras=True)
    shared = [
        (part.name, hints[part.name], field(default=part.default, default_factory=part.default_factory))
        for part in fields(Workload)
        if part.name != OWN
    ]
    own = [(name, section, field(default_factory=section)) for name, section in sections().items()]
    at = {"__module__": Workload.__module__}  # where the texts of the shared fields are
    return make_dataclass("Workload", [*shared, *own], namespace=at, frozen=True, kw_only=True)


def to_workload(settings: Any, foreign: Mapping[str, Any]) -> Workload:
    """Return what an instance of `tree` says as a Workload, with the `foreign` sections of kinds not installed here.

    A kind's section of which nothing is set is left out: other jobs have no use for it.
    """
    shared = {part.name: getattr(settings, part.name) for part in fields(Workload) if part.name != OWN}
    set_here = ((name, getattr(settings, name)) for name in sections())
    own = {name: plain(value) for name, value in set_here if value != sections()[name]()}
    return Workload(**shared, kinds={**own, **foreign})


def plain(value: Any) -> Any:
    """Return dataclasses as nested mappings, all sequences as lists."""
    if hasattr(value, "to_value"):
        return value.to_value()
    if is_dataclass(value):
        return {part.name: plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
