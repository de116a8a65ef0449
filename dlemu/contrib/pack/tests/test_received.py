"""Lists of packed files from others, and JSON for scripts."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from datagen.errors import DlemuError, ServerError
from datagen.manifest import PACKED_NAME
from datagen.storage.storage_base import FOLDERS, open_storage
from dlemu.cli import cli
from dlemu.contrib.pack.packed_set import PackedSet, read_set, verify_set, write_set
from tests.object_stores import fault, own_server, storage_of
from tests.results.test_received_names import imported, read_planted

imported = imported


def test_what_a_list_of_packed_files_names_is_not_imported(tmp_path: Path) -> None:
    packed = PackedSet(about={"source": "x"}, format="npz", ending="npz", files=1, images_per_file=1, complete=True)
    storage = open_storage(FOLDERS)
    write_set(str(tmp_path), packed, storage)

    def read_list(_: int | None) -> None:
        for read in (read_set, verify_set):
            with contextlib.suppress(DlemuError):
                read(str(tmp_path), storage)

    assert read_planted(tmp_path / PACKED_NAME, read_list) >= 2


@pytest.mark.usefixtures("keys")
def test_a_refusal_is_no_damage_of_a_list_that_could_not_be_read() -> None:
    server = own_server(fault=lambda request: fault("error", status=403, code="AccessDenied"))
    with server as refusing, pytest.raises(ServerError, match="these credentials are not allowed to do that"):
        read_set("data", storage_of(refusing))


def test_several_points_are_a_list_of_points(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / f"{name}.png").write_bytes(b"x" * 5000)
    words = [f"source={tmp_path / 'images'}", f"target={tmp_path / 'packed'}", "processes=1"]
    ended = CliRunner().invoke(cli, ["pack", *words, "evict=false", "--json"], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["points"][0]["settings"] == {}
    verified = CliRunner().invoke(cli, ["pack", "verify", words[1], "--json"], catch_exceptions=False)
    assert (verified.exit_code, json.loads(verified.stdout)) == (0, [])
