"""A fake machine: the files of /proc and /sys that probes read, in a temporary folder."""

from __future__ import annotations

import os
from pathlib import Path

from dlemu.telemetry.probe_base import Scope

STAT = "{reads} 0 {sectors} {ms} 0 0 0 0 3 {busy} {weighted} 0 0 0 0 0 0\n"


class Machine:
    """A machine to which mounts and devices can be added; create a probe with its `scope` afterwards."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys, self._root = root / "proc", root / "sys", root
        for folder in (self.proc / "self", self.sys / "class/block", self.sys / "dev/block", self.sys / "devices"):
            folder.mkdir(parents=True)
        (self.proc / "self/mountinfo").touch()

    def scope(self, *folders: Path, **ranks: int) -> Scope:
        return Scope(folders=tuple(map(str, folders)), proc=str(self.proc), sys=str(self.sys))

    def mount(self, point: Path, file_system: str, source: str, number: str = "0:99", options: str = "rw") -> Path:
        point.mkdir(parents=True, exist_ok=True)
        with open(self.proc / "self/mountinfo", "a") as lines:
            escaped = str(point).replace(" ", r"\040")
            lines.write(f"30 1 {number} / {escaped} rw shared:1 - {file_system} {source} {options}\n")
        return point

    def disk(self, name: str, number: str = "", on: Path | None = None, **stat: int) -> Path:
        home = (on or self.sys / "devices") / name
        (home / "slaves").mkdir(parents=True)
        if on is None:
            (home / "queue").mkdir()
            (home / "queue/iostats").write_text("1\n")
        else:
            (home / "partition").write_text("1\n")
        (home / "size").write_text("2048\n")
        os.symlink(home, self.sys / "class/block" / name)
        if number:
            os.symlink(home, self.sys / "dev/block" / number)
        self.counts(name, **stat)
        return home

    def counts(self, name: str, **stat: int) -> None:
        values = dict.fromkeys(("reads", "sectors", "ms", "busy", "weighted"), 0) | stat
        (self.sys / "class/block" / name / "stat").write_text(STAT.format(**values))

    def put(self, path: str, text: str) -> None:
        (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        (self._root / path).write_text(text)


def over(machine: Machine, upper: str, *lower: str) -> None:
    for name in lower:
        os.symlink(machine.sys / "class/block" / name, machine.sys / "class/block" / upper / "slaves" / name)
