"""`--json` prints the typed result that a command leaves, and nothing else on stdout."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from dlemu.cli import cli
from dlemu.cli.frontends import make_here
from dlemu.config import load
from dlemu.results.kinds import kinds


@pytest.mark.parametrize("name", sorted({kind.command for kind in kinds() if kind.command}))
def test_every_command_that_leaves_a_result_prints_it_for_programs(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert "--json" in {option for parameter in command.params for option in parameter.opts}


def test_what_is_made_first_is_not_said_where_json_is_wanted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["dataset.num_files_train=2", "dataset.record_length_bytes=1000", f"dataset.data_folder={tmp_path}"]
    for as_json in (True, False):
        make_here(load([*words, f"dataset.data_folder={tmp_path / str(as_json)}"]), as_json=as_json, yes=False)
        said = capfd.readouterr()
        assert ("made 2 files" in said.out) is not as_json
        assert ("made 2 files" in said.err) is as_json
