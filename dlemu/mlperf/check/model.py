"""What a check looks at: submissions, their results, the folders of runs and of other phases; and what it says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dlemu.mlperf.audit.printed import Printed
from dlemu.mlperf.audit.run import AuditedRun
from dlemu.mlperf.audit.setup import Setup
from dlemu.mlperf.audit.tolerant import count, mapping, text
from dlemu.mlperf.editions import Edition
from dlemu.mlperf.finding import Finding
from dlemu.mlperf.rules import Division


@dataclass(frozen=True)
class Located:
    """A finding and the file or folder that it is of."""

    path: str
    finding: Finding
    official: str | None = None
    """What the edition's own checker calls the rule; None where it has none."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One folder of one run, or of one call of another phase."""

    path: str
    name: str
    """Its name below the result: a time stamp (`20251121_134501`) or `run1`."""
    stamp: datetime | None
    """The moment in its name; None when the name is no time stamp."""
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    metadata: Mapping[str, Any] | None = None
    """`*_metadata.json` of mlpstorage; None when there is none that can be read."""
    setup: Setup = field(default_factory=Setup)
    """What its configuration says; empty without one."""
    run: AuditedRun | None = None
    """None where no run of training left its files."""

    @property
    def printed(self) -> Printed:
        """The run's summary; empty without one."""
        return self.run.printed if self.run else Printed()

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the workload as config.yaml has it, else as the metadata has it."""
        config = mapping(mapping(self.setup.config).get(name))
        return config or mapping(mapping(mapping(self.metadata).get("parameters")).get(name))

    @property
    def num_files(self) -> int | None:
        """Files of the training set that it read, made or asked for."""
        told = self.section("dataset").get("num_files_train")
        return self.printed.num_files or self.setup.num_files or _whole(told)

    @property
    def data_folder(self) -> str | None:
        """Where the dataset lies; None when that is not known."""
        return text(self.argument("data_dir")) or text(self.section("dataset").get("data_folder"))

    def argument(self, name: str) -> Any:
        """Return an argument of mlpstorage's command line as the metadata kept it, None when it did not."""
        return mapping(mapping(self.metadata).get("args")).get(name)


def _whole(value: Any) -> int | None:
    """Return a whole number; mlpstorage's metadata have what was typed as text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else count(value)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The runs of one workload on one system."""

    path: str
    """The folder that holds them."""
    edition: Edition
    division: Division
    phased: bool
    """It has mlpstorage's layout: `training/MODEL/{datasize,datagen,run}/TIME`."""
    single: bool
    """One run that stands for itself: it is not known which others belong to it."""
    runs: tuple[Leaf, ...]
    """In the order of their names."""
    datasize: tuple[Leaf, ...] = ()
    datagen: tuple[Leaf, ...] = ()

    @property
    def workload_folder(self) -> str:
        """`training/MODEL` in mlpstorage's layout, else the folder of the runs."""
        return os.path.dirname(self.path) if self.phased else self.path

    @property
    def warm_up(self) -> Leaf | None:
        """The first run, where the edition has a warm-up and there is one more than are measured."""
        return self.runs[0] if self.edition.warm_up and len(self.runs) > self.edition.measured_runs else None

    @property
    def measured(self) -> tuple[Leaf, ...]:
        """All runs but the warm-up."""
        return self.runs if self.warm_up is None else self.runs[1:]


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One organisation in one division: DIVISION/ORG."""

    path: str
    division: Division
    organisation: str
    edition: Edition


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A folder and all that was found."""

    root: str
    results: tuple[Result, ...]
    submissions: tuple[Submission, ...]
    rehearsal: Mapping[str, Any] | None
    """`rehearsal.json` of `dlemu mlperf run`, when the folder is of one."""
    findings: tuple[Located, ...] = field(default=())

    def count(self, severity: str) -> int:
        """Return how many findings there are of a severity."""
        return sum(one.finding.severity == severity for one in self.findings)

    @property
    def valid(self) -> bool:
        """Whether no rule is broken."""
        return not self.count("error")


Rule = Callable[[Result], Iterator[Located]]
"""Says what a result breaks. What is not known breaks nothing."""
