"""The plan of a rehearsal: what to rehearse, and the folders in which it goes."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.extend import UserError, child_run

_NAME = re.compile(r"^[A-Za-z0-9._-]+$")


@dataclass(frozen=True, kw_only=True)
class RehearsalPlan:
    """What to rehearse, and the folders in which it goes: one workload on one system."""

    division: Division
    organisation: str
    system: str
    workload: Workload
    words: tuple[str, ...]
    """Overrides for every run."""
    folder: str
    """The rehearsal's folder, with `tree/`, `runs/` and rehearsal.json."""
    launcher: str = ""
    """Command that starts each run, with `{ranks}` for the number of ranks. Empty: all ranks on this host."""
    config_dir: str | None = None

    def __post_init__(self) -> None:
        """Raise UserError for names that the rules do not allow for folders."""
        for option, name in (("--org", self.organisation), ("--system", self.system)):
            if not _NAME.match(name):
                raise UserError(
                    f"{option} {name!r}: the rules allow only letters, digits, dots, dashes and underscores"
                )

    @property
    def tree(self) -> str:
        """Root of the tree in the edition's layout."""
        return os.path.join(self.folder, "tree")

    @property
    def submission(self) -> str:
        """The folder DIVISION/ORG."""
        return os.path.join(self.tree, self.division, self.organisation)

    def result(self, benchmark: str, model: str) -> str:
        """Return the folder of a model's result."""
        return os.path.join(self.submission, "results", self.system, benchmark, model)

    def run(self, words: Sequence[str], folder: str, command: str) -> None:
        """Run `dlemu train` or `dlemu checkpoint` with these overrides to its end; raises DlemuError."""
        options = ["--config-dir", self.config_dir] if self.config_dir else []
        launcher = shlex.split(self.launcher.format(ranks=self.workload.ranks))
        child_run.run_train([*options, *words], folder, lambda: None, launcher, command)
