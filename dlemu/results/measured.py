"""Writes and reads the folder of a run. Each file is written under a temporary name, and renamed when it is complete.

A reader computes the summary again from the rows, and does not rely on summary.json.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datagen.atomic import write_text
from datagen.errors import UserError
from dlemu.config import to_yaml
from dlemu.config.schema import Workload
from dlemu.metrics.rows import Rows
from dlemu.results import ADVICE, CONFIG, FACTS, SUMMARY, TELEMETRY
from dlemu.results.answer_files import ANSWER_VERSION, to_json
from dlemu.results.live import RunJournal
from dlemu.results.parts import Environment
from dlemu.results.tables import read_table, write_table
from dlemu.telemetry import RecorderHead, Telemetry, from_tables, to_table


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The content of facts.json, from which all metrics are computed, together with the rows and the telemetry."""

    schema_version: int = ANSWER_VERSION
    kind: str
    workload: Workload
    ranks: int
    seed: int  # of every random choice of the run
    started_at: str  # ISO 8601 with zone
    journal: RunJournal  # notes of rank 0 during the run
    recorders: tuple[RecorderHead, ...] = ()  # the telemetry recorder of each host that had one, in node order
    failure: str | None = None  # why the run is incomplete; None if it is complete


def common_fields(facts: RunFacts) -> dict[str, Any]:
    """Return the fields of `JobSummary` that any kind of run takes from its facts."""
    return {
        "kind": facts.kind,
        "complete": facts.failure is None,
        "failure": facts.failure,
        "workload": facts.workload.model.name,
        "ranks": facts.ranks,
        "started_at": facts.started_at,
        "environment": Environment(hosts=facts.journal.hosts, storage=facts.journal.storage),
    }


JournalT = TypeVar("JournalT", bound=RunJournal)


@dataclass(frozen=True)
class MeasuredLog(Generic[JournalT]):
    """The measurements of all ranks, collected on rank 0 or read from the files of a killed run."""

    rows: NDArray[np.void]
    journal: JournalT
    telemetry: Telemetry = ()

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class MeasuredRun(ABC):
    """One run: its measurements, and the metrics computed from them."""

    folder: str
    facts: RunFacts
    rows: Rows
    """Rows of all ranks, with times by the clock of each rank's host."""
    telemetry: Telemetry
    """Readings of the recorder on each host, in node order."""

    @property
    @abstractmethod
    def summary(self) -> Any:
        """All metrics, computed from the fields."""

    @abstractmethod
    def write_rows(self) -> None:
        """Write the table of rows into the run's folder; raises SpaceError."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: the fields and the summary. Other cached values are computed again on use."""
        names = (*(field.name for field in fields(self)), "summary")
        return {name: value for name, value in vars(self).items() if name in names}


def write_measured(run: MeasuredRun) -> None:
    """Write the files from which the run is read: settings, rows, telemetry and facts. Raises SpaceError."""
    folder = run.folder
    write_text(folder, CONFIG, to_yaml(run.facts.workload), advice=ADVICE)
    run.write_rows()
    if run.telemetry:
        write_table(folder, TELEMETRY, to_table(run.telemetry))
    write_text(folder, FACTS, to_json(run.facts), advice=ADVICE)  # last: until it exists, readers use live/


def write_summary(run: MeasuredRun) -> None:
    write_text(run.folder, SUMMARY, to_json(run.summary), advice=ADVICE)


def read_telemetry(folder: str, facts: RunFacts) -> Telemetry:
    """Return the telemetry of a run, empty if it has none; raises UserError for a damaged table."""
    try:
        readings = read_table(folder, TELEMETRY)
        if readings is None or not facts.recorders:
            return ()
        telemetry = from_tables(facts.recorders, readings)
        for host in telemetry:
            if host.time_ns.dtype != np.int64 or host.value.dtype != np.float64 or not np.isfinite(host.value).all():
                raise ValueError("it holds readings that are not numbers")
        return telemetry
    except (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{os.path.join(folder, TELEMETRY)} is damaged ({error}): copy it again") from error


def check_hosts(run: MeasuredRun) -> None:
    """Raise UserError if the journal does not place every rank and every recorder on one of its hosts."""
    facts, journal = run.facts, run.facts.journal
    nodes = set(range(len(journal.hosts)))
    if len(run.rows) and (len(journal.rank_nodes) != facts.ranks or not nodes.issuperset(journal.rank_nodes)):
        raise UserError(f"{run.folder} is damaged: its journal does not say on which host each of its ranks ran")
    if not nodes.issuperset(head.node for head in facts.recorders):
        raise UserError(f"{run.folder} is damaged: it was recorded on hosts that its journal does not list")
