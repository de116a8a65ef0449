"""JSON Schemas of results, made from the types that are written and read."""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from dlemu.config.dump import meanings
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
    classes = {found.__name__: found for found in types_in(result)}
    for name, definition in schema["$defs"].items():
        texts = meanings(classes[name]) if name in classes else {}
        for key, described in definition.get("properties", {}).items():
            if text := texts.get(key):
                described["description"] = " ".join(text.split()).replace("None", "null")
    return json.dumps(schema, indent=2) + "\n"


def types_in(result: type[Any]) -> list[type[Any]]:
    """Return the type of a result and all those of its parts, in the order in which they are met."""
    found = [result]
    for kind in found:
        hints = list(get_type_hints(kind).values())
        for hint in hints:  # it grows
            hints += get_args(hint)
            part = get_origin(hint) or hint
            if (
                part not in found
                and isinstance(part, type)
                and (is_dataclass(part) or issubclass(part, msgspec.Struct))
            ):
                found.append(part)
    return found
