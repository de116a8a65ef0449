"""Configuration as layers of single settings, later ones winning, until they are one nested mapping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dlemu.config import dlio
from dlemu.config.dlio import KeyPath

Layer = list[tuple[KeyPath, Any]]
"""Settings in the order in which they apply: the path of a key, and its value."""

TABLES = ("accelerators", "scales")
"""Sections whose keys are names that a user chose."""

DURATIONS = (("reader", "preprocess_time"), ("train", "computation_time"), ("evaluation", "eval_time"))
"""Keys whose value is one time, however many numbers describe it; it is replaced as a whole."""


def layer(path: KeyPath, value: Any) -> Layer:
    """Split a value at `path` into single settings, each under the name it has here rather than in DLIO."""
    path = dlio.renamed(path, value)
    if not isinstance(value, Mapping) or not value or path in DURATIONS or path[:1] in [(name,) for name in TABLES]:
        return [(path, value)] if path else []
    settings = [setting for key, item in value.items() for setting in layer((*path, str(key)), item)]
    # A spread that DLIO's older files give beside the time itself must come after it.
    return sorted(settings, key=lambda setting: setting[0][-1] == "stdev")


def merged(layers: Iterable[Layer]) -> dict[str, Any]:
    """Return one nested mapping of all layers."""
    tree: dict[str, Any] = {}
    for settings in layers:
        for path, value in settings:
            _put(tree, path, value, ())
    return tree


def _put(tree: dict[str, Any], path: KeyPath, value: Any, above: KeyPath) -> None:
    key, rest = path[0], path[1:]
    here = (*above, key)
    if rest:
        _put(_mapping_at(tree, key, here), rest, value, here)
    elif isinstance(value, Mapping) and here not in DURATIONS:
        inner = _mapping_at(tree, key, here)
        for name, item in value.items():
            _put(inner, (str(name),), item, here)
    else:
        tree[key] = dict(value) if isinstance(value, Mapping) else value


def _mapping_at(tree: dict[str, Any], key: str, here: KeyPath) -> dict[str, Any]:
    """Return the mapping at a key, made if need be; a time that was a number becomes that number's mean."""
    if not isinstance(tree.get(key), dict):
        tree[key] = {"mean": tree[key]} if here in DURATIONS and key in tree else {}
    inner: dict[str, Any] = tree[key]
    return inner
