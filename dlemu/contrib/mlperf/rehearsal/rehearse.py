"""Rehearses a result: all its runs one after another, each laid out in the edition's tree; then checks that tree."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from dlemu.contrib.mlperf.audit.papers import STAMP_FORMAT
from dlemu.contrib.mlperf.check.judge import REHEARSAL, Checked, check_folder
from dlemu.contrib.mlperf.check.tree_rules import RESULTS
from dlemu.contrib.mlperf.rehearsal import EDITION, NOTE
from dlemu.contrib.mlperf.rehearsal.checkpoint_datasize import CheckpointDatasize
from dlemu.contrib.mlperf.rehearsal.datasize import Datasize
from dlemu.contrib.mlperf.rehearsal.edition_tree import write_json, write_readme, write_system
from dlemu.contrib.mlperf.rehearsal.plan import RehearsalPlan
from dlemu.extend import UserError, owned

Size = TypeVar("Size", Datasize, CheckpointDatasize)


@dataclass(frozen=True)
class Call:
    """One call of the tool: a run of training, or of checkpoints."""

    label: str
    words: tuple[str, ...]
    """Its own overrides."""


@dataclass(kw_only=True)
class Done:
    """A call that was begun."""

    label: str
    stamp: str
    """When it began: YYYYMMDD_HHMMSS."""
    folder: str
    """Its result folder, relative to the rehearsal's."""
    settings: tuple[str, ...]
    failure: str | None = None
    """The error's message if it failed."""
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Rehearsal(ABC, Generic[Size]):
    """One rehearsal. The time between its calls is limited, so an interrupted one can't be continued."""

    command: ClassVar[str]
    """The command of dlemu that does a call."""
    defaults: ClassVar[tuple[str, ...]] = ()
    """Overrides that those of the user replace."""
    plan: RehearsalPlan
    size: Size
    """What the rules require of its data."""
    report: Callable[[str], None]
    """Shows a line of progress."""
    now: Callable[[], datetime] = datetime.now
    """Local time, by which the calls are named."""
    done: list[Done] = field(default_factory=list)

    @property
    @abstractmethod
    def calls(self) -> Sequence[Call]:
        """All calls, in order."""

    def prepare(self) -> None:
        """Write what comes before the first call; raises UserError for wrong settings."""
        owned.take_folder(self.plan.folder, "output.folder")
        write_readme(self.plan)
        write_system(self.plan.submission, self.plan.system, self.size.hosts, self.size.memory_gib_per_host)

    @abstractmethod
    def lay_out(self, call: Done, run: str, times: tuple[str, str]) -> None:
        """Copy a finished call into the tree, and sum up what is there; `times` are its start and end."""

    def run(self) -> Checked:
        """Do all calls, write the tree and check it.

        Raises:
            UserError: settings are wrong, or the folder holds a rehearsal; found before the first call.
            DlemuError, Interrupted: a call failed, or a signal stopped it.
        """
        if os.path.exists(os.path.join(self.plan.folder, REHEARSAL)):
            raise UserError(f"{self.plan.folder} holds a rehearsal already: set output.folder to a new folder")
        self.prepare()
        self._save(complete=False)
        for call in self.calls:
            self._do(call)
        self._save(complete=True)
        return check_folder(self.plan.folder)

    def _do(self, call: Call) -> None:
        stamp = self._free_stamp()
        run = owned.fresh_folder(os.path.join(self.plan.folder, "runs"), f"{stamp}-{call.label.replace(' ', '-')}")
        inside = os.path.relpath(run, self.plan.folder)
        done = Done(label=call.label, stamp=stamp, folder=inside, settings=call.words)
        self.done.append(done)
        self.report(f"{call.label} ...")
        begun = self.now()
        try:
            # A report page takes seconds, and the time between two calls is limited.
            words = [*self.defaults, *self.plan.words, *call.words, "output.report=false"]
            self.plan.run(words, run, self.command)
        except BaseException as error:
            done.failure = str(error) or "interrupted"
            self._save(complete=False)
            raise
        self.lay_out(done, run, (begun.isoformat(), self.now().isoformat()))
        self._save(complete=False)

    def _free_stamp(self) -> str:
        """Return the time as the name of a call; wait for the next second if another call has this one."""
        taken = [call.stamp for call in self.done]
        while (stamp := self.now().strftime(STAMP_FORMAT)) in taken:
            time.sleep(0.1)
        return stamp

    def write_sums(self, result: str, **sums: object) -> None:
        """Write results.json, the sums over the calls so far."""
        runs = [{"run_datetime": done.stamp, "label": done.label} for done in self.done]
        write_json(result, RESULTS, {"rehearsal": NOTE, "runs": runs, **sums})

    def _save(self, *, complete: bool) -> None:
        record = {
            "rehearsal": NOTE,
            "complete": complete,
            "edition": EDITION,
            "division": self.plan.division,
            "calls": list(map(asdict, self.done)),
        }
        write_json(self.plan.folder, REHEARSAL, record)
