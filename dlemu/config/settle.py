"""The last step before the strict builder: what has no effect or is not possible is taken out, and said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from dlemu.config import dlio
from dlemu.config.dlio import KeyPath
from dlemu.config.loader_settings import settings_used
from dlemu.config.schema import Workload


def settled(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with values as the schema wants them, and with `notes` and `unsupported` filled.

    A null asks for the default. YAML reads a bare `off` as false, which means off for the shuffles.
    """
    tree = _with_our_values(tree)
    found = _Findings(tree)
    left = _without(tree, (), found)
    reader = left.get("reader")
    if isinstance(reader, dict):
        reader.update({key: "off" for key in ("file_shuffle", "sample_shuffle") if reader.get(key) is False})
    return {**left, **found.lists()}


def _with_our_values(tree: Mapping[str, Any]) -> dict[str, Any]:
    ours = dict(tree)
    for (section, key), names in dlio.RENAMED_VALUES.items():
        given = ours.get(section)
        if isinstance(given, Mapping) and isinstance(given.get(key), str):
            ours[section] = {**given, key: names.get(given[key], given[key])}
    return ours


class _Findings:
    """What was taken out of one configuration; starts with what a saved configuration already says."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self._said = {name: tree.get(name) or [] for name in ("notes", "unsupported")}
        self._notes: list[str] = []
        self._keys_by_reason: dict[str, list[str]] = {}
        workflow = tree.get("workflow")
        self._checkpoints = isinstance(workflow, Mapping) and bool(workflow.get("checkpoint"))
        used = settings_used(_said(tree, "reader", "data_loader"), _said(tree, "dataset", "format"))
        self._unused = {key: reason for key, reason in dlio.OF_SOME_LOADERS.items() if key not in used}
        if "." not in _said(tree, "storage", "storage_type"):
            self._unused |= dlio.NO_EFFECT_ON_FOLDERS

    def takes(self, key: str, value: Any) -> bool:
        """Say whether DLIO's key is none of ours; if it asked for something, remember that."""
        if key in dlio.NO_EFFECT:
            self._no_effect(key, value, dlio.NO_EFFECT[key])
        elif dlio.SECRET.fullmatch(key):
            self._no_effect(key, value, dlio.LEFT_OUT)
        elif key in self._unused:
            self._no_effect(key, value, self._unused[key])
        elif key in dlio.UNSUPPORTED:
            self._unsupported(key, value, dlio.UNSUPPORTED[key])
        elif key in dlio.CHECKPOINT_SHAPE_KEYS and self._checkpoints:
            self._unsupported(key, value, dlio.CHECKPOINT_SHAPE)
        elif key in dlio.CHECKPOINT_SHAPE_KEYS:
            self._no_effect(key, value, dlio.NO_CHECKPOINT)
        else:
            return False
        return True

    def lists(self) -> dict[str, Any]:
        """Return both lists, what was saved first; a sentence that it already has is not said again."""
        unsupported = [f"{', '.join(keys)}: not possible yet, {text}" for text, keys in self._keys_by_reason.items()]
        new = {"notes": self._notes, "unsupported": unsupported}
        # A saved value that is no list is left for the strict builder to name.
        return {
            name: [*said, *(text for text in new[name] if text not in said)] if isinstance(said, list) else said
            for name, said in self._said.items()
        }

    def _no_effect(self, key: str, value: Any, reason: dlio.Reason) -> None:
        if "." not in key and isinstance(value, Mapping):
            for name, item in value.items():
                self._no_effect(f"{key}.{name}", item, reason)
        elif not reason.is_harmless(value):
            self._notes.append(f"{key} has no effect: {reason.text}")

    def _unsupported(self, key: str, value: Any, reason: dlio.Reason) -> None:
        if not reason.is_harmless(value):
            self._keys_by_reason.setdefault(reason.text, []).append(key)


def _said(tree: Mapping[str, Any], section: str, key: str) -> str:
    """Return what the configuration says, or what the schema says where it is silent."""
    given = tree.get(section)
    value = given.get(key) if isinstance(given, Mapping) else None
    return str(getattr(getattr(Workload(), section), key) if value is None else value)


def _without(tree: Mapping[str, Any], above: KeyPath, found: _Findings) -> dict[str, Any]:
    left: dict[str, Any] = {}
    for key, value in tree.items():
        path = (*above, str(key))
        if found.takes(".".join(path), value) or (value is None and _is_setting(path)):
            continue
        left[str(key)] = _without(value, path, found) if isinstance(value, Mapping) else value
    return left


def _is_setting(path: KeyPath) -> bool:
    """Whether the schema has this key; one that it lacks is left for the strict builder to name."""
    section: Any = Workload()
    for name in path:
        if not is_dataclass(section) or name not in [field.name for field in fields(section)]:
            return False
        section = getattr(section, name)
    return True
