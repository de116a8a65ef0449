"""Runs the installed dlemu command for a measurement, and reads its result."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.processes import Child, running

from datagen.errors import UserError
from dlemu.metrics.verdict import COMPLETED

Wrap = Callable[[list[str]], list[str]]
"""Puts a prefix before a command, which limits its cores or its storage."""


@dataclass(frozen=True)
class Done:
    """A completed run."""

    folder: str
    summary: dict[str, Any]
    status: int


def dlemu(*arguments: str) -> list[str]:
    """Return a command line of the dlemu that is installed beside this interpreter."""
    path = os.path.join(os.path.dirname(sys.executable), "dlemu")
    if not os.path.exists(path):
        raise UserError(f"there is no {path}: run scripts/bench or scripts/validate, which install dlemu first")
    return [path, *arguments]


@contextlib.contextmanager
def started(command: str, settings: Sequence[str], *, within: str, wrap: Wrap = list) -> Iterator[tuple[Child, str]]:
    """Start `dlemu COMMAND`; yield the process and its results folder, a new one in `within`, which is kept."""
    folder = tempfile.mkdtemp(prefix="run-", dir=within)
    with running(wrap(dlemu(command, *settings, f"output.folder={folder}", "output.report=false"))) as child:
        yield child, folder


def finished(child: Child, folder: str, result: str = "summary.json") -> Done:
    """Wait for a command to end, and return its result, the file `result`."""
    status = child.end(COMPLETED)
    with open(os.path.join(folder, result)) as lines:
        return Done(folder, json.load(lines), status)


def run_job(
    command: str, settings: Sequence[str], *, within: str, wrap: Wrap = list, result: str = "summary.json"
) -> Done:
    """Run `dlemu COMMAND` to its end, and return its result, the file `result`."""
    with started(command, settings, within=within, wrap=wrap) as (child, folder):
        return finished(child, folder, result)


BUCKET = "bucket"


def bucket(endpoint: str) -> list[str]:
    """Return dlemu's settings for the bucket of a server that accepts any keys; put keys into the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "taken-as-they-are")
    return [
        *section("storage", storage_type="s3", storage_root=BUCKET),
        f"storage.storage_options.endpoint_url={endpoint}",
    ]


def section(name: str, **values: object) -> list[str]:
    """Return settings of one section as arguments of dlemu."""
    return [f"{name}.{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]
