"""JSON Schemas of results, made from the types that are written and read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from dlemu.config.meanings import meanings
from dlemu.results.kinds import Kind, kinds

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def described() -> dict[str, Kind]:
    """Return command -> kind whose result has a schema; further kinds of a command are listed by their own names."""
    known: dict[str, Kind] = {}
    for kind in kinds():
        known[kind.name if kind.command in known else kind.command] = kind
    return known


def schema_text(kind: Kind) -> str:
    """Return the schema of a kind's result as JSON.

    Keys may be added within a schema_version (docs/stability.md), so objects may have other keys than those listed.
    """
    result = kind.load().answer_type
    schema = {"$schema": DIALECT, "title": f"{kind.answer} of dlemu {kind.command}", **msgspec.json.schema(result)}
    classes = {found.__name__: found for found in _classes(inspect.type_info(result))}
    for name, definition in schema["$defs"].items():
        texts = meanings(classes[name]) if name in classes else {}
        for key, described in definition.get("properties", {}).items():
            if text := texts.get(key):
                described["description"] = " ".join(text.split()).replace("None", "null")
    return json.dumps(schema, indent=2) + "\n"


def _classes(found: Any, known: set[type[Any]] | None = None) -> Iterator[type[Any]]:
    """Yield the classes that a type refers to, directly or not."""
    known = set() if known is None else known
    if isinstance(found, inspect.DataclassType | inspect.StructType):
        if found.cls in known:
            return
        known.add(found.cls)
        yield found.cls
        for field in found.fields:
            yield from _classes(field.type, known)
    elif isinstance(found, inspect.Metadata):
        yield from _classes(found.type, known)
    else:
        for name in ("types", "item_types", "item_type", "key_type", "value_type"):
            inner = getattr(found, name, ())
            for part in inner if isinstance(inner, tuple) else (inner,):
                yield from _classes(part, known)
