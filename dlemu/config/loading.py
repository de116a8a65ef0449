"""From what the user wrote to one frozen, checked Workload."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from datagen.errors import UserError
from datagen.spec import build
from dlemu.config.check import check
from dlemu.config.compose import composed, resolved
from dlemu.config.dlio import KeyPath
from dlemu.config.folders import with_resolved_folders
from dlemu.config.layers import Layer, layer, merged
from dlemu.config.names import SUFFIX, nearest
from dlemu.config.overrides import parse
from dlemu.config.schema import Workload
from dlemu.config.settle import settled

DEFAULT_WORKLOAD = "default"


def load(overrides: Sequence[str], config_dir: str | None = None) -> Workload:
    """Compose, resolve, build and check; see `dlemu.config.load`."""
    request = parse(overrides)
    choice = request.workload or DEFAULT_WORKLOAD
    file = layer((), composed(choice, config_dir))
    asked = [setting for given in request.settings for setting in layer(given.path, given.value)]
    # As in files, a spread given in DLIO's older way must come after the time itself.
    asked.sort(key=lambda setting: setting[0][-1] == "stdev")
    tree = resolved(merged(_layers(choice, file, asked)))
    if ("scale",) not in dict(asked):
        _check_recorded_scale(choice, tree)
    workload = with_resolved_folders(build(Workload, settled(tree)))
    check(workload)
    return workload


def _layers(choice: str, file: Layer, asked: Layer) -> list[Layer]:
    """Return all layers, weakest first: what a file leaves open, the file, what the user chose by name, and by key."""
    all_said = merged([file, asked])
    chosen_by_name = {path[0] for path, _ in asked if path in (("accelerator",), ("scale",))}
    pair = _accelerator_pair(choice, all_said)
    return [
        [(("model", "name"), os.path.basename(choice).removesuffix(SUFFIX)), *pair],
        file,
        pair if "accelerator" in chosen_by_name else [],
        _scale_entries(choice, all_said) if "scale" in chosen_by_name else [],
        asked,
    ]


def _accelerator_pair(choice: str, tree: dict[str, Any]) -> Layer:
    entry = _chosen(choice, tree, "accelerator", "accelerators")
    places = {"batch_size": ("reader", "batch_size"), "computation_time": ("train", "computation_time")}
    return [(path, entry[key]) for key, path in places.items() if key in entry]


def _scale_entries(choice: str, tree: dict[str, Any]) -> Layer:
    return layer((), _chosen(choice, tree, "scale", "scales"))


def _check_recorded_scale(choice: str, tree: dict[str, Any]) -> None:
    """Refuse a file's `scale` that did not make its values: a full-size run must not be called small."""
    entries = _scale_entries(choice, tree)
    if entries and not any(_value_at(tree, path) == value for path, value in entries):
        name = tree["scale"]
        raise UserError(
            f"workload {choice!r} says scale: {name}, but has none of that scale's values: in a file it only records"
            f" what made them; take it out of the file and give scale={name} as an override"
        )


def _value_at(tree: Any, path: KeyPath) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _chosen(choice: str, tree: dict[str, Any], key: str, section: str) -> dict[str, Any]:
    """Return the entry of a table that the configuration names, or nothing when it names none."""
    name = tree.get(key)
    if name in (None, ""):
        return {}
    table = tree.get(section)
    if not isinstance(table, dict) or not table:
        raise UserError(
            f"{key}={name}: workload {choice!r} has no {section}; leave {key} out, or add a table of {section}"
        )
    if str(name) not in table:
        raise UserError(
            f"{key}={name} is none of workload {choice!r}: {nearest(str(name), table)}known are {', '.join(table)}"
        )
    entry = table[str(name)]
    return entry if isinstance(entry, dict) else {}
