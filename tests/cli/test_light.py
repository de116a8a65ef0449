"""What every command costs before it does anything."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import click
import pytest

from dlemu.cli import commands, guarded

HEAVY = {"hydra", "msgspec", "numpy", "omegaconf", "psutil", "pyarrow", "rich", "torch", "yaml"}
SETTINGS = "dlemu.config.schema"
"""A quarter of what the list of commands would cost."""


def test_numpy_starts_no_threads_in_a_rank() -> None:
    code = "import os, dlemu.cli, numpy; print(len(os.listdir('/proc/self/task')))"
    own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    ran = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert int(ran.stdout) == 1


@pytest.mark.parametrize("words", [[], *([name] for name in commands())], ids=" ".join)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom dlemu.cli import main\ntry: main()\n"
        "finally: print(*{name.partition('.')[0] for name in sys.modules}, *sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, *words, "--help"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("Usage: dlemu")
    assert set(ran.stderr.split()) & (HEAVY if words else HEAVY | {SETTINGS}) == set()


def test_what_a_command_imports_is_not_looked_through_for_garbage_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collections: list[int] = []

    @click.command()
    def many() -> None:
        """Make as many objects as a framework does that is imported."""
        before = sum(generation["collections"] for generation in gc.get_stats())
        kept = [[number] for number in range(300_000)]
        collections.append(sum(generation["collections"] for generation in gc.get_stats()) - before)
        kept.clear()

    monkeypatch.setattr("sys.argv", ["many"])
    threshold = gc.get_threshold()
    try:
        guarded(many, "many")
    finally:
        gc.set_threshold(*threshold)
    assert collections[0] < 30


def test_the_end_of_a_command_does_not_look_for_garbage_in_all_that_it_imported() -> None:
    """The collector's last rounds see what is not frozen."""
    code = (
        "import atexit, gc\nfrom dlemu.__main__ import main\n"
        "atexit.register(lambda: print(len(gc.get_objects()), gc.get_freeze_count()))\nmain()"
    )
    ran = subprocess.run([sys.executable, "-c", code, "workloads"], capture_output=True, text=True, check=True)
    seen, frozen = map(int, ran.stdout.splitlines()[-1].split())
    assert 100 * seen < frozen


def test_what_shows_a_result_is_imported_before_rank_0_is_forked() -> None:
    """Rank 0 writes log.txt and the command its table: each would import it for itself, 0.02 CPU s."""
    code = (
        "import sys\nfrom dlemu.config import load\nfrom dlemu.report.run_log import log_writer\n"
        "from dlemu.runner.events import JobBegan\n"
        "log_writer('dlemu train')(JobBegan(load([]), 1))\nprint('dlemu.jobs.training.page' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


def test_shells_are_offered_commands_and_options() -> None:
    def offered(words: str) -> list[str]:
        at = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_DLEMU_COMPLETE": "zsh_complete"}
        code = "import sys; sys.argv = ['dlemu']; from dlemu.cli import main; main()"
        ran = subprocess.run([sys.executable, "-c", code], env=os.environ | at, capture_output=True, text=True)
        return ran.stdout.splitlines()[1::3]

    assert offered("dlemu tr") == ["train"]
    assert "--json" in offered("dlemu train --")
