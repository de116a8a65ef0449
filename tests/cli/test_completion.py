"""Completion by the shells' own protocols, and in bash itself."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datagen.registry import names
from dlemu.config.workload_files import workload_names
from tests.cli.test_light import HEAVY
from tests.e2e.harness import DEADLINE_SECONDS

DLEMU = Path(sys.executable).parent / "dlemu"
FRAMEWORKS = HEAVY & {"hydra", "numpy", "pyarrow", "rich", "torch"}


def proposed(shell: str, words: str, **more: str) -> list[str]:
    """Return what a shell gets for a command line, of which the last word is half typed."""
    at = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    if shell == "fish":
        at["COMP_CWORD"] = words.split(" ")[-1]
    asked = os.environ | at | {"_DLEMU_COMPLETE": f"{shell}_complete"} | more
    out = subprocess.run([DLEMU], env=asked, capture_output=True, text=True, check=True).stdout
    if shell == "zsh":
        return out.splitlines()[1::3]
    return [line.split(",", 1)[1].partition("\t")[0] for line in out.splitlines()]


def test_commands_and_options() -> None:
    assert proposed("zsh", "dlemu tr") == ["train"]
    assert "--json" in proposed("zsh", "dlemu train --")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_keys_are_proposed_section_by_section(shell: str) -> None:
    first = proposed(shell, "dlemu train ")
    assert {"workload=", "accelerator=", "scale=", "ranks=", "dataset.", "reader."} <= set(first)
    assert len(first) < 40, "the settings of all sections would be 150"
    assert proposed(shell, "dlemu train dataset.f") == ["dataset.format=", "dataset.file_prefix="]


def test_values_are_those_that_are_known() -> None:
    assert set(proposed("zsh", "dlemu size workload=")) == {f"workload={name}" for name in workload_names()}
    for key, folder in (("dataset.format", "datagen.formats"), ("reader.data_loader", "dlemu.loaders")):
        assert proposed("zsh", f"dlemu train {key}=") == [f"{key}={name}" for name in names(folder)]
    assert proposed("zsh", "dlemu train workload=unet3d accelerator=h") == ["accelerator=h100"]
    assert proposed("zsh", "dlemu train workload=unet3d scale=") == ["scale=laptop"]
    assert proposed("zsh", "dlemu train metric.cached=") == ["metric.cached=true", "metric.cached=false"]
    assert proposed("zsh", "dlemu doctor reader.engine=m") == ["reader.engine=matched"]


def test_the_next_of_several_values_is_proposed() -> None:
    assert proposed("zsh", "dlemu sweep reader.data_loader=threads,pyt") == ["reader.data_loader=threads,pytorch"]


def test_paths_are_proposed_where_no_value_is_known(tmp_path: Path) -> None:
    (tmp_path / "unet3d").mkdir()
    (tmp_path / "notes.txt").touch()
    words = f"dlemu train dataset.data_folder={tmp_path}/"
    assert proposed("zsh", words) == [f"dataset.data_folder={tmp_path}/{name}" for name in ("notes.txt", "unet3d/")]
    assert proposed("zsh", f"{words}u") == [f"dataset.data_folder={tmp_path}/unet3d/"]


def test_what_is_wrong_proposes_nothing() -> None:
    for words in ("dlemu train nothing.of=", "dlemu train workload=none accelerator=", "dlemu train ranks="):
        assert proposed("zsh", words) == []


def in_bash(*words: str) -> list[str]:
    """Return the replies of bash's own function, which gets words as bash breaks them, at `=` too."""
    script = (
        'eval "$(_DLEMU_COMPLETE=bash_source dlemu)"\n'
        f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}\n"
        '_dlemu_completion dlemu 2>/dev/null\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    at = os.environ | {"PATH": f"{DLEMU.parent}:{os.environ['PATH']}"}
    ran = subprocess.run(["bash", "-c", script], env=at, capture_output=True, text=True, check=True)
    return [line for line in ran.stdout.splitlines() if line]


def test_bash_gets_the_part_behind_the_equals_sign() -> None:
    assert in_bash("dlemu", "train", "workload", "=", "unet") == ["unet3d"]
    assert "h100" in in_bash("dlemu", "train", "workload", "=", "unet3d", "accelerator", "=")
    assert in_bash("dlemu", "train", "works") == []
    assert in_bash("dlemu", "train", "workl") == ["workload="]
    assert in_bash("dlemu", "train", "workload=unet") == ["workload=unet3d"], "where COMP_WORDBREAKS has no ="


def in_zsh(words: str, folder: Path) -> str:
    """Return what an interactive zsh shows once the words are typed and completed by Tab."""
    terminal, there = pty.openpty()
    at = os.environ | {"PATH": f"{DLEMU.parent}:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(folder)}
    shell = subprocess.Popen(["zsh", "-f", "-i"], stdin=there, stdout=there, stderr=there, env=at, cwd=folder)
    os.close(there)
    shown = b""

    def read_until(wanted: bytes) -> None:
        nonlocal shown
        deadline = time.monotonic() + DEADLINE_SECONDS
        while wanted not in shown and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 65536)

    try:
        os.write(terminal, b"autoload -Uz compinit; compinit -u -d dump; PS1=; RPS1=\n")
        os.write(terminal, b'eval "$(_DLEMU_COMPLETE=zsh_source dlemu)"; echo rea""dy\n')
        read_until(b"ready")
        shown = b""
        os.write(terminal, words.encode() + b"\t")
        read_until(b"train ")
        os.write(terminal, b"\x15exit\n")  # Ctrl-U: the line is not to run
        shell.wait(DEADLINE_SECONDS)
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)
    return shown.decode(errors="replace")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_itself_completes(tmp_path: Path) -> None:
    assert "dlemu train " in in_zsh("dlemu tra", tmp_path)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_itself_completes(tmp_path: Path) -> None:
    at = os.environ | {"PATH": f"{DLEMU.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for words, wanted in (("dlemu tra", "train"), ("dlemu train workload=unet", "workload=unet3d")):
        script = f"_DLEMU_COMPLETE=fish_source dlemu | source; complete -C {shlex.quote(words)}"
        ran = subprocess.run(["fish", "-c", script], env=at, capture_output=True, text=True, check=True)
        assert wanted in [line.partition("\t")[0] for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_nothing_follows_an_open_end(shell: str) -> None:
    script = subprocess.run(
        [DLEMU], env=os.environ | {"_DLEMU_COMPLETE": f"{shell}_source"}, capture_output=True, text=True, check=True
    ).stdout
    wanted = {"bash": ["compopt -o nospace"], "zsh": ['space=(-S "")', 'compadd -U "${space[@]}" -V']}
    assert all(part in script for part in wanted[shell])


@pytest.mark.parametrize("words", ["dlemu train workload=", "dlemu train dataset.format="])
def test_nothing_heavy_is_imported(words: str) -> None:
    code = (
        "import atexit, sys\nfrom dlemu.cli import main\n"
        "atexit.register(lambda: print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr))\n"
        "sys.argv = ['dlemu']\nmain()"
    )
    at = {"COMP_WORDS": words, "COMP_CWORD": "2", "_DLEMU_COMPLETE": "zsh_complete"}
    ran = subprocess.run([sys.executable, "-c", code], env=os.environ | at, capture_output=True, text=True, check=True)
    assert set(ran.stderr.split()) & FRAMEWORKS == set()
