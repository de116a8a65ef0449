"""Every command on every page is one that dlemu takes; links and pictures are there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dlemu.cli import cli, commands
from dlemu.config import load
from dlemu.config.points import check_points, points
from dlemu.jobs.pack.words import read_words
from dlemu.metrics.verdict import COMPLETED
from dlemu.studies.reproduce.run import document_names

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MADE = {"answers.md", "cli.md", "settings.md", "mlperf-rules.md"}
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")))
WITH_COMMANDS = [page for page in PAGES if page != "CHANGELOG.md" and Path(page).name not in MADE]
LAUNCHERS = re.compile(r"^(?:PYTHONPATH=\. |mpirun .*? (?=dlemu )|srun .*? (?=dlemu )|torchrun .*? (?=dlemu ))")
"""What may stand before a command of dlemu's on a page."""
PLACEHOLDERS = re.compile(r"\.\.\.|\$s3|\$BIN|(?<![\w.])[A-Z][A-Z_-]+(?![\w=])|my\.|mine\.|my_")
"""Words of a command that stand for the reader's own: it is not composed then, only its options are looked at."""


def commands_of(page: str) -> Iterator[str]:
    """Yield the commands of dlemu in the code of a page, without prompts, launchers and comments."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```(?:bash)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    blocks += re.findall(r"(?:^    \S.*\n(?:^ {4,}.*\n)*)", text, flags=re.MULTILINE)
    for block in blocks:
        for line in block.replace("\\\n", " ").splitlines():
            command = LAUNCHERS.sub("", line.strip())
            if command.startswith("dlemu "):
                yield command


def options(command: click.Command) -> set[str]:
    return {"--help", "-h"} | {
        option for one in command.params for option in (*one.opts, *one.secondary_opts) if option.startswith("-")
    }


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the words name, and the words behind its name."""
    found: click.Command = cli
    while isinstance(found, click.Group) and words and not words[0].startswith("-") and "=" not in words[0]:
        inner = found.get_command(click.Context(found), words[0])
        if inner is None:
            break
        found, words = inner, words[1:]
    return found, words


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_are_understood(page: str) -> None:
    for text in commands_of(page):
        words = shlex.split(text, comments=True)[1:]
        assert words[0] in commands() or words[0].startswith("-") or words[0] in ("COMMAND", "NAME", "stat"), text
        if words[0] not in commands():
            continue
        command, rest = command_of(words)
        mine = rest[: rest.index("--")] if "--" in rest else rest
        given = {word.partition("=")[0] for word in mine if word.startswith("--")}
        assert given <= options(command), f"{page}: {text}: {given - options(command)}"
        if not PLACEHOLDERS.search(text):
            composed(words[0], rest, text)


def composed(name: str, words: list[str], text: str) -> None:
    """Compose the settings of a command as it would itself."""
    settings = [word for word in words if "=" in word and not word.startswith(("-", "launcher="))]
    if name == "reproduce":
        document, *_ = [word for word in words if "=" not in word]
        assert document in document_names(), text
    elif name == "pack" and words[0] != "verify":
        assert all(read_words(one.words) for one in points(settings)), text
    elif name in ("train", "checkpoint", "size", "sweep", "predict", "doctor", "datagen", "kvcache"):
        # A file or folder of the reader's own is not here.
        if any(word.endswith(".yaml") or word == "dataset.source=folder" for word in settings):
            return
        runs = points(settings)
        if name == "sweep":
            check_points(runs)
        else:
            assert len(runs) == 1, text
        for run in {run.words: run for run in (runs[0], runs[-1])}.values():
            load(run.words)


def test_most_pages_have_commands() -> None:
    found = {page: len(list(commands_of(page))) for page in WITH_COMMANDS}
    assert sum(found.values()) > 100
    assert sum(count > 0 for count in found.values()) > 15


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    """As typed, at laptop scale, in a folder of their own."""
    small = ["scale=laptop", "dataset.num_files_train=56", "train.epochs=1", "reader.data_loader=threads"]
    short = ["ranks=2", "train.total_training_steps=3", "metric.ceiling_seconds=0", "metric.scaling_seconds=0"]
    ran: list[str] = []
    for text in commands_of("README.md"):
        words = shlex.split(text.replace("/mnt/nvme", str(tmp_path)))
        if words[1] == "train":
            words = [word for word in words if not word.startswith("ranks=")] + small + short
        elif words[1] != "predict":
            continue
        where = f"output.folder={tmp_path / f'result-{len(ran)}'}"
        ended = subprocess.run([sys.executable, "-m", *words, where], capture_output=True, text=True, timeout=250)
        assert ended.returncode in COMPLETED, f"{words}: {ended.stderr}"
        ran.append(words[1])
    assert ran == ["train", "train", "predict"]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_are_there(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"(?<!\!)\[[^\]]*\]\(([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page}: {link}"
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text):
        assert 0 < ((ROOT / page).parent / picture).stat().st_size < 150_000, picture


def anchors(page: Path) -> set[str]:
    """Return the targets that a repository's pages make of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
