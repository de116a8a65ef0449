"""Writes a Workload as YAML, as overrides, and as the command that generates its dataset.

It also finds the meanings of settings and of JSON keys: these are the docstrings of dataclass fields in the source.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from datagen.withheld import redact_argv, redact_option, redact_options, redact_urls
from dlemu.config.loading import DEFAULT_WORKLOAD, load
from dlemu.config.overrides import override
from dlemu.config.schema import OWN, Output, Workload, plain
from dlemu.config.translate import DURATIONS, KeyPath
from dlemu.config.workload_files import workload_names


def to_yaml(workload: Workload) -> str:
    """Return all settings as YAML, without credentials."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(_escaped(as_in_yaml(published(workload))))


def published(value: Any, name: str = "") -> Any:
    """Return a workload, or one of its values, with credentials in storage options and URLs withheld.

    `name` is the key of that value; in the entries of `scales` it may be dotted.
    """
    section, _, option = name.rpartition(".")
    if section.endswith("storage_options"):
        return redact_option(option, value)
    if is_dataclass(value) and not isinstance(value, type):
        public = {field.name: published(getattr(value, field.name), field.name) for field in fields(value)}
        return replace(value, **public)
    if isinstance(value, Mapping):
        if name.endswith("storage_options"):
            return redact_options(value)
        return {key: published(item, key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(published, value))
    return redact_urls(value) if isinstance(value, str) else value


def as_in_yaml(workload: Workload) -> dict[str, Any]:
    """Return all settings as nested plain values, with the sections of kinds of jobs beside the shared ones."""
    settings: dict[str, Any] = plain(workload)
    kinds_sections = settings.pop(OWN)
    return {**settings, **kinds_sections}


def digest(workloads: Sequence[Workload]) -> str:
    """Return a digest of the workloads' settings, without those of `output` and without credentials."""
    texts = (to_yaml(replace(workload, output=Output())) for workload in workloads)
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def datagen_command(workload: Workload) -> str:
    """Return the shell command that makes a workload's dataset: a shipped workload, and the settings that differ."""
    name = workload.model.name if workload.model.name in workload_names() else DEFAULT_WORKLOAD
    overrides = [override(["workload"], name)]
    base = load(overrides)
    if workload.scale in base.scales:
        overrides.append(override(["scale"], workload.scale))
        base = load(overrides)
    settings, base_settings = as_in_yaml(workload), as_in_yaml(base)
    for section in ("storage", "dataset"):
        overrides += _differences((section,), settings[section], base_settings[section])
    if name == DEFAULT_WORKLOAD and len(overrides) > 1:
        del overrides[0]  # the default workload need not be named
    return shlex.join(["dlemu", "datagen", *redact_argv(overrides)])


def _escaped(value: Any) -> Any:
    """Escape each literal `${`, in OmegaConf a reference: double the backslashes before it, and add another one."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _differences(section: KeyPath, settings: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[str]:
    """Yield an override, as users write it, for each setting that differs from `base`."""
    for key, value in settings.items():
        path, base_value = (*section, key), base.get(key)
        if isinstance(value, dict) and path not in DURATIONS:
            yield from _differences(path, value, base_value or {})
        elif value != base_value:
            is_whole = isinstance(value, float) and value.is_integer() and value < 1e15
            yield override(path, int(value) if is_whole else value)  # 262000, not 262000.0


def meanings(section: type[Any]) -> dict[str, str]:
    """Return field name -> docstring of a dataclass and its bases; empty if the source is not available."""
    texts: dict[str, str] = {}
    for base in reversed(section.__mro__):
        texts |= _field_docstrings(base.__module__).get(base.__name__, {})
    return texts


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, without its full stop; None becomes null, as in JSON."""
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".").replace("None", "null")


@cache
def _field_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return class name -> field name -> docstring."""
    try:
        nodes = ast.parse(inspect.getsource(sys.modules[module])).body
    except (OSError, TypeError):  # no source, or a built-in module
        return {}
    docstrings: dict[str, dict[str, str]] = {}
    for definition in (node for node in nodes if isinstance(node, ast.ClassDef)):
        fields_of_class = docstrings.setdefault(definition.name, {})
        for statement, following in pairwise(definition.body):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=field)), ast.Expr(value=ast.Constant(value=str(text))):
                    fields_of_class[field] = inspect.cleandoc(text)
    return docstrings
