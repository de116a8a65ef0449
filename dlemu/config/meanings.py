"""The meanings of a dataclass's fields: the docstring below each, read from the module's source when it is shown."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from typing import Any


def meanings(section: type[Any]) -> dict[str, str]:
    """Return field name -> docstring, base classes included; empty where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        found |= _of_module(base.__module__).get(base.__name__, {})
    return found


def summary(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, without its full stop, and with null as in JSON."""
    return summary(text).partition(". ")[0].rstrip(".").replace("None", "null")


@cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):  # no source, or a built-in module
        return {}
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(definition: ast.ClassDef) -> dict[str, str]:
    found = {}
    for statement, after in zip(definition.body, definition.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=field)), ast.Expr(value=ast.Constant(value=str(text))):
                found[field] = inspect.cleandoc(text)
    return found
