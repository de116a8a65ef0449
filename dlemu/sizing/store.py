"""size.json, sweep.json, compare.json. The first two are saved after each trial, so that an interrupted one goes on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from typing import Any

from datagen.atomic import write_text
from datagen.errors import UserError
from dlemu.sizing.answer import Question
from dlemu.sizing.trial import Trial

SIZE, SWEEP, COMPARE = "size.json", "sweep.json", "compare.json"


def save_answer(folder: str, answer: dict[str, Any], name: str = SIZE) -> None:
    """Write the file by rename."""
    write_text(folder, name, json.dumps(answer, indent=2) + "\n")


def read_answer(folder: str, name: str = SIZE) -> dict[str, Any] | None:
    """Return what the file holds, None when it is not there; raises UserError when it is none of ours."""
    path = os.path.join(folder, name)
    try:
        with open(path) as lines:
            found = json.load(lines)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}); wanted what dlemu wrote: delete it to begin anew") from None
    if not isinstance(found, dict) or "schema_version" not in found:
        raise UserError(f"{path} has no schema_version: wanted what dlemu wrote")
    return found


def saved_trials(folder: str, question: Question) -> list[Trial]:
    """Return the finished trials of an interrupted search for the same question.

    Raises UserError when the folder holds a finished search, a run, or a search for something else.
    """
    if os.path.exists(os.path.join(folder, "summary.json")):
        raise UserError(f"{folder} holds the results of a run; set output.folder to a new folder")
    saved = read_answer(folder)
    if saved is None:
        return []
    if saved["complete"]:
        raise UserError(f"{folder} holds a finished search; set output.folder to a new folder, or read its {SIZE}")
    check_same(folder, saved["question"], json.loads(json.dumps(asdict(question))))
    return [_trial(one) for one in saved["trials"]]


def _trial(saved: dict[str, Any]) -> Trial:
    known = {field.name: saved[field.name] for field in fields(Trial)}
    return Trial(**known | {"stretch_au_percent": tuple(saved["stretch_au_percent"])})


def check_same(folder: str, saved: dict[str, Any], asked: dict[str, Any]) -> None:
    """Refuse to go on with what was asked otherwise."""
    differing = [key for key in asked if saved.get(key) != asked[key]]
    if differing:
        told = "; ".join(f"{key} was {saved.get(key)!r}, is {asked[key]!r}" for key in differing)
        raise UserError(f"{folder} holds an interrupted search for something else ({told}); set output.folder anew")
