"""rehearsal.json: saved after each run, so that a rehearsal goes on where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from datagen.errors import UserError
from dlemu.mlperf.check.judge import REHEARSAL
from dlemu.mlperf.rehearsal import NOTE
from dlemu.mlperf.rehearsal.outcome import sum_up
from dlemu.mlperf.rehearsal.plan import WARM_UP, Plan
from dlemu.mlperf.rehearsal.sequence import Attempt, as_record, finished, saved_attempts
from dlemu.sizing.answers import check_same, read_answer, save_answer

SCHEMA_VERSION = 1


def done_before(folder: str, question: Mapping[str, Any]) -> list[Attempt]:
    """Return the attempts of an interrupted rehearsal of the same; none when there is no rehearsal in the folder.

    Raises UserError when the folder holds a finished one, or one of something else.
    """
    saved = read_answer(folder, REHEARSAL, dict[str, Any])
    if saved is None:
        return []
    if saved["complete"]:
        raise UserError(
            f"{folder} holds a finished rehearsal; set output.folder to a new folder, or look at it with"
            f" `dlemu mlperf check {folder}`"
        )
    check_same(folder, saved["question"], json.loads(json.dumps(question)))
    return saved_attempts(saved)


def save(plan: Plan, question: Mapping[str, Any], attempts: Sequence[Attempt], *, complete: bool) -> None:
    """Write rehearsal.json; raises SpaceError."""
    measured = [
        found.figures
        for label in plan.labels
        if label != WARM_UP and (found := finished(attempts, label)) and found.figures is not None
    ]
    record = {
        "schema_version": SCHEMA_VERSION,
        "rehearsal": NOTE,
        "complete": complete,
        "edition": plan.edition.name,
        "division": plan.division,
        "question": question,
        "attempts": as_record(attempts),
        "outcome": asdict(sum_up(measured)) if measured else None,
    }
    save_answer(plan.folder, REHEARSAL, record)
