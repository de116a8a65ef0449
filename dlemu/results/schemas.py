"""JSON Schemas of results, made from the types that are written and read."""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from dlemu.config.dump import meanings
from dlemu.results.kinds import Kind, kinds

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def kinds_by_command() -> dict[str, Kind]:
    """Return the kinds of results by command (`train`, ...); if a command has several, the others by their names."""
    by_command: dict[str, Kind] = {}
    for kind in kinds():
        by_command[kind.name if kind.command in by_command else kind.command] = kind
    return by_command


def schema_text(kind: Kind) -> str:
    """Return the JSON Schema of a kind's result, in which each key has its meaning as description.

    Objects may have further keys, since a schema_version may gain some (docs/stability.md).
    """
    result = kind.load().answer_type
    schema = {"$schema": DIALECT, "title": f"{kind.answer} of dlemu {kind.command}", **msgspec.json.schema(result)}
    for record_type in types_in(result):
        properties, texts = schema["$defs"].get(record_type.__name__, {}).get("properties", {}), meanings(record_type)
        for key in properties.keys() & texts.keys():
            properties[key]["description"] = " ".join(texts[key].split()).replace("None", "null")
    return json.dumps(schema, indent=2) + "\n"


def types_in(result: type[Any]) -> list[type[Any]]:
    """Return a result's type and the record types (dataclasses, Structs) of its fields at any depth, breadth first."""
    types = [result]
    for record_type in types:  # `types` grows while it is iterated, and so does `hints`
        hints = list(get_type_hints(record_type).values())
        for hint in hints:
            hints += get_args(hint)
            nested = get_origin(hint) or hint
            is_record = isinstance(nested, type) and (is_dataclass(nested) or issubclass(nested, msgspec.Struct))
            if is_record and nested not in types:
                types.append(nested)
    return types
