"""The commands on the pages about sizing are ones that dlemu takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dlemu.config import load
from dlemu.config.points import check_points, points
from dlemu.packing.pack_settings import read_words
from dlemu.reproduction.run_steps import document_names

DOCS = Path(__file__).parent.parent / "docs"


def commands(page: str) -> list[str]:
    blocks = re.findall(r"```\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("dlemu ")]


def compare_options() -> set[str]:
    from dlemu.cli.compare import command

    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_pictures_are_there_and_small(page: str) -> None:
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (DOCS / page).read_text()):
        assert 0 < (DOCS / picture).stat().st_size < 150_000, picture


@pytest.mark.parametrize("page", ["packing.md", "sizing.md", "vendor-figures.md"])
def test_commands_are_understood(page: str) -> None:
    found = commands(page)
    assert len(found) > 2
    for command in found:
        name, *words = shlex.split(command)[1:]
        if name == "reproduce":
            document, *others = [word for word in words if "=" not in word]
            assert document in document_names(), command
            assert {"--price", "--watts"} >= {word for word in others if word.startswith("--")}, command
            continue
        if name == "pack":
            packings = points([word for word in words if word != "--make"]) if words[0] != "verify" else []
            assert all(read_words(packing.words) for packing in packings), command
            continue
        if name == "compare":
            assert not [word for word in words if word.startswith("-") and word not in compare_options()], command
            continue
        runs = points([word for word in words if "=" in word and not word.startswith("launcher=")])
        if name == "sweep":
            check_points(runs)
        else:
            assert len(runs) == 1, command
        for run in {run.words: run for run in (runs[0], runs[-1])}.values():
            load(run.words)
