"""What a user gets who installs the wheel: all of the checkout's packages and data files, and commands that work.

The wheel is built from the source distribution, and installed into an environment of its own that sees the third-party
packages of the one that runs the tests, but not the checkout: nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from dlemu import __version__
from dlemu.cli import cli
from dlemu.metrics.verdict import COMPLETED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SOURCES = {"datagen": "datagen", "dlemu": "dlemu", "configs": "dlemu/configs"}
"""Folders of the checkout -> where they are installed."""
OPTIONAL = {"torch", "tensorflow", "mpi4py", "h5py", "nvidia", "simplejpeg", "PIL"}
OPTIONAL |= {"altair", "vl_convert", "jinja2", "mfusepy"}
"""What the extras bring, as Python imports it."""
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"
IMPORT = """
import importlib, json, sys
modules, failures = json.load(sys.stdin), {}
for name in modules:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        failures[name] = [cause.name if isinstance(cause, ModuleNotFoundError) else "", repr(error)]
    else:
        if not module.__file__.startswith(sys.prefix):
            failures[name] = ["", module.__file__]
print(json.dumps(failures))
"""
HELP = """
import json, sys
from click.testing import CliRunner
from dlemu.cli import cli
told = [CliRunner().invoke(cli, [*words, "--help"], prog_name="dlemu") for words in json.load(sys.stdin)]
print(json.dumps([one.output if one.exit_code == 0 else repr(one.exception) for one in told]))
"""


@dataclass(frozen=True)
class Installed:
    wheel: Path
    prefix: Path
    elsewhere: Path
    """An empty folder, to start commands in."""

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; its paths and the checkout's are not mixed."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PATH"] = f"{self.prefix / 'bin'}:{environment['PATH']}"
        program = [str(self.prefix / "bin" / command[0]), *command[1:]]
        return subprocess.run(
            program, env=environment, cwd=self.elsewhere, input=stdin, capture_output=True, text=True, timeout=200
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build as `python -m build` does, checkout -> source distribution -> wheel, and install."""
    where = tmp_path_factory.mktemp("wheel")
    source = where / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-c", BUILD.format("sdist"), where], cwd=source, capture_output=True, check=True)
    (archive,) = where.glob("*.tar.gz")
    (where / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", where / "unpacked"], check=True)  # tarfile's filters: not in 3.11.2
    (unpacked,) = (where / "unpacked").iterdir()
    subprocess.run([sys.executable, "-c", BUILD.format("wheel"), where], cwd=unpacked, capture_output=True, check=True)
    (wheel,) = where.glob("*.whl")

    prefix, elsewhere = where / "environment", where / "elsewhere"
    elsewhere.mkdir()
    venv.create(prefix, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(prefix / "bin" / "python"), "install", "--quiet"]
    pip += ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", str(wheel)]
    subprocess.run(pip, capture_output=True, check=True)
    # A .pth file brings a folder's packages but not the .pth files in it, such as that of an editable install.
    (own,) = (prefix / "lib").glob("python*/site-packages")
    third_party = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (own / "third_party.pth").write_text("\n".join(third_party))
    return Installed(wheel=wheel, prefix=prefix, elsewhere=elsewhere)


def source_files() -> Iterator[tuple[Path, str]]:
    """Yield each file that must be installed, and its path in the wheel; tests and pages of parts are not."""
    for folder, target in SOURCES.items():
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.relative_to(ROOT).parts
            if path.is_file() and not {"__pycache__", "tests", "docs"} & set(inside):
                yield path, f"{target}/{path.relative_to(ROOT / folder).as_posix()}"


def test_every_file_of_the_checkout_is_in_the_wheel_and_nothing_else(installed: Installed) -> None:
    names = {name for name in zipfile.ZipFile(installed.wheel).namelist() if ".dist-info/" not in name}
    assert names == {name for _, name in source_files()}


def test_an_index_page_shows_no_broken_link(installed: Installed) -> None:
    """README.md's links into the repository lead nowhere there."""
    with zipfile.ZipFile(installed.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        head, _, description = wheel.read(name).decode().partition("\n\n")
    assert [link for link in re.findall(r"\]\(([^)]*)\)", description) if not link.startswith("http")] == []
    assert "sizing.md" in description, "the words stay"
    assert "![" not in description
    assert f"Version: {__version__}" in head
    assert "Description-Content-Type: text/markdown" in head


def test_every_module_can_be_imported(installed: Installed) -> None:
    modules = [name.removesuffix(".py").replace("/", ".") for _, name in source_files() if name.endswith(".py")]
    ended = installed.run("python", "-c", IMPORT, stdin=json.dumps(modules))
    assert ended.returncode == 0, ended.stderr
    failures: dict[str, tuple[str, str]] = json.loads(ended.stdout.splitlines()[-1])
    unexpected = {name: text for name, (missing, text) in failures.items() if missing.split(".")[0] not in OPTIONAL}
    assert not unexpected


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    yield names
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name)


def test_every_command_has_help(installed: Installed) -> None:
    known = list(commands(cli))
    assert ("mlperf", "datasize") in known
    ended = installed.run("python", "-c", HELP, stdin=json.dumps(known))
    assert ended.returncode == 0, ended.stderr
    for words, said in zip(known, json.loads(ended.stdout), strict=True):
        assert said.startswith(f"Usage: {' '.join(['dlemu', *words])} "), said
    for program in ("dlemu", "dlio_benchmark"):
        assert installed.run(program, "--help").stdout.startswith(f"Usage: {program} ")


def test_a_run_elsewhere_makes_its_pages(installed: Installed) -> None:
    pytest.importorskip("altair", reason="pages need the extra `report`")
    pytest.importorskip("vl_convert", reason="pages need the extra `report`")
    settings = ("dataset.data_folder=data", "dataset.num_files_train=16", "dataset.record_length_bytes=40000")
    once = ("reader.data_loader=threads", "train.computation_time=0.005", "metric.ceiling_seconds=0", "ranks=2")
    for command in (
        ("datagen", *settings),
        ("train", *settings, *once, "train.epochs=1", "output.folder=run"),
        ("compare", "run", "run", "--output", "compared"),
    ):
        ended = installed.run("dlemu", *command)
        assert ended.returncode in COMPLETED, f"{command}: {ended.stderr}"  # 1: a busy machine may not pass
    for page in ("run/report.html", "compared/report.html"):
        assert "<svg" in (installed.elsewhere / page).read_text(), page
