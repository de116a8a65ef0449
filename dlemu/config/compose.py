"""Composes a workload as plain sections, from its file and the files that its defaults list includes."""

from __future__ import annotations

import os
import re
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from datagen.errors import UserError
from datagen.regular import read_regular
from dlemu.config.workload_files import workload_file

MOST_YAML_BYTES, MOST_YAML_VALUES = 1 << 20, 10_000  # all existing settings fill 10 KB; aliases multiply
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")
"""An environment variable in MLPerf Storage's workload files, which Hydra would take for a key."""
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{")
_NOT_LITERAL = re.compile(r"\$\{|\A\?\?\?\Z")
"""What OmegaConf does not take as it stands: a reference, and its word for no value."""
_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}
_NUMERIC = "-+.0123456789_eE:"
"""Of these OmegaConf makes numbers that YAML does not know, such as 1e6."""


class _NotPlainError(Exception):
    """Raised for what OmegaConf may read in another way: importing it takes 0.07 CPU s, a tenth of a short run."""


def composed(choice: str, config_dir: str | None) -> dict[str, Any]:
    """Return the sections of the chosen workload as nested values, interpolations unresolved; raises UserError."""
    path = workload_file(choice, config_dir)
    content, root = _checked_content(path)
    try:
        text, tree = content.decode(), None
        if "@package" not in text:
            try:
                tree = _values(root, SafeConstructor())
            except (_NotPlainError, yaml.YAMLError, ValueError):
                from dlemu.config.hydra_files import read_text

                tree = read_text(text)
        # Hydra takes 0.05 CPU s for the same result, if the file includes no other, as no shipped one does.
        if not isinstance(tree, dict) or not {"defaults", "hydra"}.isdisjoint(tree):
            from dlemu.config.hydra_files import composed_by_hydra

            tree = composed_by_hydra(os.path.abspath(path))
    except RecursionError:
        raise UserError(
            f"workload={choice} can't be composed: its values refer to themselves, or nest too deep"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"workload={choice} can't be composed: {error}") from None
    # All sections are below `workload` in DLIO's own configurations, and for files in a folder `workload` in Hydra.
    inner = tree.get("workload", {})
    if inner is not None and not isinstance(inner, dict):
        return tree
    return {**{key: value for key, value in tree.items() if key != "workload"}, **(inner or {})}


def read_plain(path: str) -> dict[str, Any]:
    """Return the values in a YAML file of unknown source; raises UserError, also for references to this host."""
    content, _ = _checked_content(path)
    try:
        tree = yaml.load(content, YAML_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} is a {type(tree).__name__}: wanted a mapping of sections")
    if _refers(tree):
        raise UserError(f"{path} has references (${{...}}): wanted the plain values that dlemu writes")
    return {str(key): value for key, value in tree.items()}


def _refers(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_refers(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return any(map(_refers, value))
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def _checked_content(path: str) -> tuple[bytes, yaml.Node | None]:
    """Read a YAML file; raises UserError for one with more values than any real one, as composing it takes long."""
    try:
        content = read_regular(path, MOST_YAML_BYTES)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; wanted a file of YAML") from None
    try:
        root = yaml.compose(content, YAML_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError):
        return content, None  # composing it reports what is wrong
    values = _count(root, {})
    if values > MOST_YAML_VALUES:
        raise UserError(f"{path} has {values} keys and values (aliases expanded): wanted at most {MOST_YAML_VALUES}")
    return content, root


def _count(node: yaml.Node | None, counted: dict[int, int]) -> int:
    """Return the number of values in a node, counting aliases as often as they are used."""
    if id(node) in counted:
        return counted[id(node)]
    counted[id(node)] = 1  # for a node that contains itself
    if isinstance(node, yaml.MappingNode):
        counted[id(node)] += sum(_count(part, counted) for pair in node.value for part in pair)
    elif isinstance(node, yaml.SequenceNode):
        counted[id(node)] += sum(_count(part, counted) for part in node.value)
    return counted[id(node)]


def resolved(tree: dict[str, Any]) -> dict[str, Any]:
    """Return plain nested values with each `${...}` replaced by its value; raises UserError for one without a value."""
    try:
        odd: list[Any] = []
        plain: dict[str, Any] = _with_environment(tree, odd)
    except RecursionError:
        raise UserError("the settings refer to themselves, or nest too deep: wanted sections of plain values") from None
    if odd:
        from dlemu.config.hydra_files import with_references

        return with_references(plain)
    return plain


def _values(node: yaml.Node | None, scalars: SafeConstructor) -> Any:
    """Return the values of a node; raises _NotPlainError for those that OmegaConf may read in another way."""
    if isinstance(node, yaml.MappingNode):
        named = {key.value: value for key, value in node.value if key.tag == "tag:yaml.org,2002:str"}
        if len(named) == len(node.value):  # else a key is there twice, or no text
            return {key: _values(value, scalars) for key, value in named.items()}
    elif isinstance(node, yaml.SequenceNode):
        return [_values(item, scalars) for item in node.value]
    elif isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS and not _NOT_LITERAL.search(node.value):
        is_number_elsewhere = node.tag.endswith("str") and not node.style and not node.value.strip(_NUMERIC)
        if not is_number_elsewhere:
            return scalars.construct_object(node)
    raise _NotPlainError


def _with_environment(tree: Any, odd: list[Any], *, options: bool = False) -> Any:
    """Return a copy with variables such as `${AWS_REGION}` in storage options replaced; null where not set.

    `odd` gets the values and keys that OmegaConf would not leave as they are.
    """
    if type(tree) is dict:
        odd += [key for key in tree if type(key) is not str]
        return {
            key: _with_environment(value, odd, options=options or key == "storage_options")
            for key, value in tree.items()
        }
    if type(tree) is list:
        return [_with_environment(value, odd) for value in tree]
    if isinstance(tree, str) and _NOT_LITERAL.search(tree):
        variable = _VARIABLE.fullmatch(tree) if options else None
        if variable:
            return os.environ.get(variable[1])
        odd.append(tree)
    elif tree is not None and type(tree) not in (bool, int, float, str):
        odd.append(tree)
    return tree
