"""Answers come back as they were saved and are valid by their schemas; what is none of ours is named in one line."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from datagen import owned
from datagen.errors import SpaceError, UserError
from datagen.owned import MARKER
from dlemu.cli import cli
from dlemu.results.answer_files import ANSWER_VERSION, open_untrusted, read_answer, read_untrusted, save_answer, to_json
from dlemu.results.kinds import Kind, kind_of, kinds, read_result
from dlemu.results.schemas import schema_text
from tests.parts import of_parts

NAME = "answer.json"


@dataclass(frozen=True, kw_only=True)
class Answer:
    schema_version: int = ANSWER_VERSION
    drive: str
    rate: float = 0.0


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    assert read_answer(str(tmp_path), NAME, Answer) is None
    save_answer(str(tmp_path), NAME, Answer(drive="fast", rate=2.5))
    assert read_answer(str(tmp_path), NAME, Answer) == Answer(drive="fast", rate=2.5)
    save_answer(str(tmp_path), NAME, Answer(drive="slow"))
    assert read_answer(str(tmp_path), NAME, Answer) == Answer(drive="slow")
    assert {path.name for path in tmp_path.iterdir()} == {NAME, MARKER}, "the folder is dlemu's now"


@pytest.mark.parametrize("marks", [False, True], ids=["answer", "marker"])
def test_a_full_disk_is_told_and_an_empty_folder_does_not_stay(
    marks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(owned, "claim" if marks else "create_part", refuse)
    name = MARKER if marks else NAME
    with pytest.raises(SpaceError, match=rf"{re.escape(name)} could not be written.*; free some space, or write to"):
        save_answer(str(tmp_path / "new" / "folder"), NAME, Answer(drive="fast"))
    assert (tmp_path / "new").exists() == marks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ("{}", "has schema_version None, wanted 1"),
        ('{"schema_version": 2, "drive": "x"}', "has schema_version 2, wanted 1"),
        ('{"schema_version": 1}', "is damaged .*drive"),
        ('{"schema_version": 1, "drive": 3}', "is damaged"),
    ],
)
def test_what_is_no_answer_is_told_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        read_answer(str(tmp_path), NAME, Answer)
    assert str(tmp_path / NAME) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_link_to_nothing_is_told_and_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=NAME):
        read_answer(str(tmp_path), NAME, Answer)


def test_a_file_that_somebody_sent_is_read_to_its_most_bytes_and_nothing_else_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    assert read_untrusted(str(path), 10) == bytes(10)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UserError, match=f"{path} can.t be read: it has 10 bytes, wanted at most 9"):
        read_untrusted(str(path), 9)
    assert len(os.listdir("/proc/self/fd")) == before, "nothing stays open"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name, said in (
        *(
            (name, "can't be read: it is a (pipe|device|folder), wanted a regular file")
            for name in ("pipe", "zeros", ".")
        ),
        ("gone", "gone can't be read: No such file or directory; name the folder of a result"),
        ("a\0b", "can't be read: embedded null byte; name the folder of a result"),
        ("no/summary.json", f"^{tmp_path}/no is not a folder: name the folder of a result"),
    ):
        with pytest.raises(UserError, match=said):
            open_untrusted(f"{tmp_path}/{name}", 1 << 20)


# schemas


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
    for table in schema["$defs"].values():
        for key, field in table.get("properties", {}).items():
            assert "default" not in field or valid(field | {"$defs": schema["$defs"]}, field["default"]), key
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
