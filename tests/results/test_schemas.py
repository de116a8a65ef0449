"""The JSON Schemas of results: what is written is valid by them, and what is not is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from dlemu.cli import cli
from dlemu.results.answer_files import to_json
from dlemu.results.kinds import Kind, kind_of, kinds, read_result
from dlemu.results.schemas import schema_text
from tests.parts import of_parts

GOLDENS = Path(__file__).parents[1] / "goldens" / "results"
RESULTS = [*sorted(GOLDENS.iterdir()), *of_parts("RESULTS").values()]


def written(folder: Path) -> tuple[Kind, dict[str, Any]]:
    """Return the kind of a result, and what its command would write today."""
    kind, result = kind_of(str(folder)), read_result(str(folder))
    assert kind is not None
    return kind, json.loads(to_json(result.summary if kind.is_job else result))


def valid(schema: dict[str, Any], answer: object) -> bool:
    validator: Any = jsonschema.Draft202012Validator(schema)
    return not list(validator.iter_errors(answer))


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_what_is_written_is_valid(folder: Path) -> None:
    kind, answer = written(folder)
    schema = json.loads(schema_text(kind))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert valid(schema, answer)
    assert valid(schema, answer | {"added_later": 1}), "keys may be added"
    root = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    for key in root["required"]:
        assert not valid(schema, {name: value for name, value in answer.items() if name != key}), key
    assert not valid(schema, answer | {root["required"][0]: {"of": "another type"}})


def test_every_command_that_leaves_a_result_has_a_schema() -> None:
    told = CliRunner().invoke(cli, ["schema"], catch_exceptions=False).output
    listed = dict(line.split() for line in told.splitlines())
    assert {kind.command for kind in kinds() if kind.command} <= listed.keys()
    assert sorted(listed.values()) == sorted(kind.answer for kind in kinds() if kind.command), "each answer once"
    printed = CliRunner().invoke(cli, ["schema", "size"], catch_exceptions=False).output
    assert json.loads(printed)["title"] == "size.json of dlemu size"


def test_the_meaning_of_a_field_is_its_description() -> None:
    schema = json.loads(schema_text(next(kind for kind in kinds() if kind.command == "train")))
    assert schema["$defs"]["Summary"]["properties"]["complete"]["description"] == (
        "Whether everything planned was measured."
    )
