"""Reads, with OmegaConf, what is more than plain YAML: references between settings, numbers such as 1e6."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from datagen.errors import UserError


def read_text(text: str) -> dict[str, Any] | None:
    """Return the sections in a text of YAML, references unresolved; None if it is no mapping. Raises ValueError."""
    try:
        config = OmegaConf.create(text)
        return plain(config) if isinstance(config, DictConfig) else None
    except OmegaConfBaseException as error:
        raise ValueError(str(error)) from None


def with_references(tree: dict[str, Any]) -> dict[str, Any]:
    """Return nested values with each `${...}` replaced by its value; raises UserError for one without a value."""
    try:
        return plain(OmegaConf.create(tree), resolve=True)
    except RecursionError:
        raise UserError("the settings refer to themselves, or nest too deep: wanted sections of plain values") from None
    except OmegaConfBaseException as error:
        raise UserError(
            f"{_first_line(error)} (at {error.full_key}): wanted a value, or a reference to a key that is set"
        ) from None


def plain(config: Any, *, resolve: bool = False) -> dict[str, Any]:
    """Return a configuration as nested values; raises UserError for one that is no mapping."""
    plain = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    if not isinstance(plain, dict):
        raise UserError(f"the workload is a {type(plain).__name__}: wanted a mapping of sections")
    return {str(key): value for key, value in plain.items()}


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
