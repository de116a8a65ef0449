"""Merges several rehearsals: copies their trees into one, as if the tool had used one results folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from dlemu.contrib.mlperf.audit.tolerant import mapping, read_json
from dlemu.contrib.mlperf.check.judge import REHEARSAL, TREE, Checked, check_folder
from dlemu.contrib.mlperf.rehearsal import NOTE
from dlemu.contrib.mlperf.rehearsal.edition_tree import README
from dlemu.extend import SpaceError, UserError, write_text
from dlemu.results.finding import Finding

_SYSTEMS = "systems"


def merge(folder: str, rehearsals: Sequence[str]) -> Checked:
    """Copy the trees of rehearsals into one below the new `folder`, and check it.

    Raises:
        UserError: `folder` is not empty, one of the rehearsals has no finished run, they are of different editions, or
            two of them hold the same result.
        SpaceError: the tree can't be written.
    """
    if os.path.isdir(folder) and os.listdir(folder):
        raise UserError(f"{folder} is not empty: wanted a new folder for the merged tree")
    return merge_into(folder, rehearsals)


def merge_into(folder: str, rehearsals: Sequence[str]) -> Checked:
    """Merge like `merge`, but into a folder that may hold the rehearsals themselves."""
    records = [read_record(rehearsal) for rehearsal in rehearsals]
    editions = sorted({str(record.get("edition")) for record in records})
    if len(editions) > 1:
        raise UserError(f"rehearsals of v{' and v'.join(editions)}: a tree must be of one edition")
    owners: dict[str, str] = {}
    for rehearsal in rehearsals:
        if not os.path.isdir(os.path.join(rehearsal, TREE)):
            raise UserError(f"{rehearsal} holds no finished run: wanted a folder {TREE}/ in it")
        for name in _files(os.path.join(rehearsal, TREE)):
            first = owners.setdefault(name, rehearsal)
            if first != rehearsal and not _may_repeat(name):
                raise UserError(f"{name} is in {first} and {rehearsal}: a tree can hold only one result of a workload")
    try:
        for name, rehearsal in owners.items():
            target = os.path.join(folder, TREE, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(os.path.join(rehearsal, TREE, name), target)
    except OSError as error:
        raise SpaceError(f"{folder} can't be written: {error.strerror}; free some space, and merge again") from error
    attempts = [attempt for record in records for attempt in record.get("attempts") or []]
    record = {
        "schema_version": 1,
        "rehearsal": NOTE,
        "complete": all(record.get("complete") is True for record in records),
        "edition": editions[0],
        "merged": [os.path.abspath(rehearsal) for rehearsal in rehearsals],
        "attempts": attempts,
    }
    write_text(folder, REHEARSAL, json.dumps(record, indent=2) + "\n")
    return check_folder(folder)


def read_record(rehearsal: str) -> dict[str, Any]:
    """Return a rehearsal's record; raises UserError for a folder without one."""
    path = os.path.join(rehearsal, REHEARSAL)
    broken: list[Finding] = []
    record = dict(mapping(read_json(path, broken))) if os.path.isfile(path) else {}
    if broken:
        raise UserError(f"{rehearsal} is damaged: {broken[0].seen}; copy it again")
    if not record:
        raise UserError(f"{rehearsal} is not a folder of `dlemu mlperf run`: wanted {REHEARSAL} and {TREE}/ in it")
    return record


def _files(tree: str) -> Iterator[str]:
    for folder, below, names in os.walk(tree):
        below[:] = [name for name in below if not name.endswith(".part")]
        yield from (os.path.relpath(os.path.join(folder, name), tree) for name in sorted(names))


def _may_repeat(name: str) -> bool:
    """Return whether several trees may have this file, of which the first is kept: README and system descriptions."""
    return name == README or os.path.basename(os.path.dirname(name)) == _SYSTEMS
