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
    """Return the kinds that have a schema by command: `train`, ...; a command's further kinds are under their names."""
    kind_by_name: dict[str, Kind] = {}
    for kind in kinds():
        kind_by_name[kind.name if kind.command in kind_by_name else kind.command] = kind
    return kind_by_name


def schema_text(kind: Kind) -> str:
    """Return the schema of a kind's result as JSON.

    Keys may be added within a schema_version (docs/stability.md), so objects may have other keys than those listed.
    """
    result = kind.load().answer_type
    schema = {"$schema": DIALECT, "title": f"{kind.answer} of dlemu {kind.command}", **msgspec.json.schema(result)}
    for part in types_in(result):
        properties = schema["$defs"].get(part.__name__, {}).get("properties", {})
        for key in properties.keys() & meanings(part).keys():
            properties[key]["description"] = " ".join(meanings(part)[key].split()).replace("None", "null")
    return json.dumps(schema, indent=2) + "\n"


def types_in(result: type[Any]) -> list[type[Any]]:
    """Return the type of a result and all those of its parts, in the order in which they are met."""
    types = [result]
    for record_type in types:  # `types` grows while it is iterated, and so does `hints`
        hints = list(get_type_hints(record_type).values())
        for hint in hints:
            hints += get_args(hint)
            part = get_origin(hint) or hint
            is_record = isinstance(part, type) and (is_dataclass(part) or issubclass(part, msgspec.Struct))
            if is_record and part not in types:
                types.append(part)
    return types
