"""What every command costs before it does anything."""

from __future__ import annotations

import os
import subprocess
import sys

from dlemu.cli import commands

HEAVY = {"hydra", "msgspec", "numpy", "omegaconf", "psutil", "pyarrow", "rich", "torch", "yaml"}
SETTINGS = "dlemu.config.schema"
"""A quarter of what the list of commands would cost."""


def test_numpy_starts_no_threads_in_a_rank() -> None:
    code = "import os, dlemu.cli, numpy; print(len(os.listdir('/proc/self/task')))"
    own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    ran = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert int(ran.stdout) == 1


def test_help_imports_nothing_heavy() -> None:
    """Of dlemu, then of each command, in one process."""
    code = (
        "import sys\nfrom dlemu.cli import cli, commands\n"
        "def imported(*words):\n"
        "    cli.main([*words, '--help'], standalone_mode=False)\n"
        "    print(*words, '->', *{name.partition('.')[0] for name in sys.modules}, *sys.modules, file=sys.stderr)\n"
        "imported()\nfor name in commands(): imported(name)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *others = [line.partition("->")[2].split() for line in ran.stderr.splitlines()]
    assert len(others) == len(commands())
    assert set(first) & (HEAVY | {SETTINGS}) == set()
    assert set(others[-1]) & HEAVY == set()


def test_shells_are_offered_commands_and_options() -> None:
    def offered(words: str) -> list[str]:
        at = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_DLEMU_COMPLETE": "zsh_complete"}
        code = "import sys; sys.argv = ['dlemu']; from dlemu.cli import main; main()"
        ran = subprocess.run([sys.executable, "-c", code], env=os.environ | at, capture_output=True, text=True)
        return ran.stdout.splitlines()[1::3]

    assert offered("dlemu tr") == ["try", "train"]
    assert "--json" in offered("dlemu train --")
