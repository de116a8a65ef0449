"""Every command on every page is one that dlemu takes; links and pictures are there."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dlemu.cli import cli, commands
from dlemu.config import check_runnable, load
from dlemu.config.overrides import check_points, points
from dlemu.dlio.command import load_command
from dlemu.results.kinds import kinds
from tests.doc_blocks import DOCS, PAGES, ROOT, WITH_COMMANDS, lines
from tests.parts import needs_all_parts, of_parts

LAUNCHERS = re.compile(r"^(?:PYTHONPATH=\. |mpirun .*? (?=dlemu )|srun .*? (?=dlemu )|torchrun .*? (?=dlemu ))")
"""What may stand before a command of dlemu's on a page."""
PLACEHOLDERS = re.compile(r"\.\.\.|\$s3|\$BIN|(?<![\w.])[A-Z][A-Z_-]+(?![\w=])|my\.|mine\.|my_")
"""Words of a command that stand for the reader's own: it is not composed then, only its options are looked at."""


def commands_of(page: str) -> Iterator[str]:
    """Yield the commands of dlemu in the code of a page, without prompts, launchers and comments."""
    for line in lines(page):
        command = LAUNCHERS.sub("", line)
        if command.startswith("dlemu "):
            yield command


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    found: click.Command = cli
    while isinstance(found, click.Group) and words and not words[0].startswith("-") and "=" not in words[0]:
        inner = found.get_command(click.Context(found), words[0])
        if inner is None:
            break
        found, words = inner, words[1:]
    return found, words


@needs_all_parts
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_are_understood(page: str) -> None:
    """Their options, the values of these, and their settings; what each command then does, its own tests show."""
    for text in commands_of(page):
        words = shlex.split(text, comments=True)[1:]
        assert words[0] in commands() or words[0].startswith("-") or words[0] in ("COMMAND", "NAME", "stat"), text
        if words[0] not in commands():
            continue
        command, rest = command_of(words)
        try:
            command.make_context(words[0], list(rest))
        except click.UsageError as error:
            pytest.fail(f"{page}: {text}: {error.format_message()}")
        if not PLACEHOLDERS.search(text):
            composed(words[0], rest, text)


def composed(name: str, words: list[str], text: str) -> None:
    """Compose the settings of a command as it would itself, and check that a job can have them."""
    settings = [word for word in words if "=" in word and not word.startswith(("-", "launcher="))]
    jobs = {kind.command: kind for kind in kinds() if kind.is_job}
    if (compose := of_parts("COMPOSED").get(name)) is not None:
        assert compose(words), text
    elif name in {"size", "sweep", "predict", "doctor", "datagen", *jobs}:
        # A file or folder of the reader's own is not here.
        if any(word.endswith(".yaml") or word == "dataset.source=folder" for word in settings):
            return
        runs = points(settings)
        if name == "sweep":
            check_points(runs)
        else:
            assert len(runs) == 1, text
        for run in {run.words: run for run in (runs[0], runs[-1])}.values():
            workload = load(run.words)
            if name in jobs:
                jobs[name].load_job().job.complete(workload)


def test_files_that_a_reader_may_copy_are_taken(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.jpg").write_bytes(b"x")
    (workload,) = re.findall(r"```yaml\n(# my\.yaml\n.*?)```", (DOCS / "own-workload.md").read_text(), re.DOTALL)
    (sheet,) = re.findall(r"```yaml\n(name: .*?)```", (DOCS / "prediction.md").read_text(), re.DOTALL)
    (tmp_path / "my.yaml").write_text(workload.replace("/data/my-images", f"{tmp_path}/images"))
    (tmp_path / "sheet.yaml").write_text(sheet)
    check_runnable(load([f"workload={tmp_path}/my.yaml"]))
    words = ["workload=resnet50", "accelerator=h100", "--drive", str(tmp_path / "sheet.yaml"), "--json", "ranks=2"]
    predicted = CliRunner().invoke(cli, ["predict", *words, f"output.folder={tmp_path}/predicted"])
    assert predicted.exit_code in (0, 1), predicted.output


@needs_all_parts
def test_most_pages_have_commands() -> None:
    counts = [len(list(commands_of(page))) for page in WITH_COMMANDS]
    assert sum(counts) > 80
    assert sum(map(bool, counts)) > 15


PROGRAMS = ("pip", "docker", "node_exporter", "dlio_benchmark", "mpirun", ".venv/bin/pip", ".venv/bin/pytest")


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_other_programs_are_called_as_they_can_be(page: str) -> None:
    """What is no command of dlemu's: scripts and extras are there, and nothing else passes for a command."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line in lines(page):
        command = LAUNCHERS.sub("", line)
        if re.match(r"(\w+=|export |dlemu |mlpstorage )", command):  # variables; those that others test
            continue
        program, *words = shlex.split(command, comments=True)
        is_script = re.match(r"(\./)?scripts/", program) and os.access(ROOT / program, os.X_OK)
        assert program in PROGRAMS or is_script, f"{page}: {line}"
        named = (part.split(",") for word in words for part in re.findall(r"^(?:\.|dlemu)\[(.+)\]", word))
        assert extras.keys() >= {*chain.from_iterable(named)}, f"{page}: {line}"
        if "dlio_benchmark" in line:
            arguments = shlex.split(line, comments=True)
            load_command(arguments[arguments.index("dlio_benchmark") + 1 :], None)


@needs_all_parts
@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_are_there(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"(?<!\!)\[[^\]]*\]\(([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists() if re.search("(scripts|examples)/", path) else target.is_file(), f"{page}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page}: {link}"
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text):
        assert 0 < ((ROOT / page).parent / picture).stat().st_size < 150_000, picture


def anchors(page: Path) -> set[str]:
    """Return the targets that a repository's pages make of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
