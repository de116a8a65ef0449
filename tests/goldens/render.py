"""Renders saved results for comparison with goldens: numbers and codes of each kind, and the most important texts.

`results/` has a small real result of every kind. Numbers and texts are recomputed from them by the current code, in a
copy as the current folder, so that no path of this host gets into a text.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from rich.console import Console

import dlemu
from dlemu.report.any_run import show
from dlemu.results.kinds import kind_of

HERE = Path(__file__).parent
RESULTS, EXPECTED = HERE / "results", HERE / "expected"
WIDTH = 100

KINDS = ("train", "checkpoint", "size", "sweep", "compare", "predict_rate", "probe")
"""Results whose numbers and codes are compared: one of each kind."""

SHOWN = ("train", "train_objects", "checkpoint", "size", "compare", "predict_rate")
"""Results whose text on the terminal is compared: a pass, a fail, and one of each other kind."""


def goldens() -> dict[str, Callable[[], str]]:
    """Return a function for each file in `expected/`, to be called within `surroundings`."""
    makers: dict[str, Callable[[], str]] = {f"{name}.json": partial(numbers, name) for name in KINDS}
    return makers | {f"{name}.terminal.txt": partial(terminal, name) for name in SHOWN}


@contextlib.contextmanager
def surroundings(results: Path) -> Iterator[None]:
    """Change to a copy of `results/`, and to the time zone UTC, because texts have ends of runs in local time."""
    with contextlib.chdir(results), patch.dict(os.environ, TZ="UTC"):
        time.tzset()
        yield
    time.tzset()


def numbers(folder: str) -> str:
    """Return the numbers and codes of a result, or of a run's recomputed summary, as JSON without sentences."""
    result = dlemu.load_result(folder)
    answer = msgspec.to_builtins(getattr(result, "summary", result))
    text = msgspec.json.format(msgspec.json.encode(_without_sentences(answer)), indent=2).decode() + "\n"
    # 12 digits of each float: the last ones of a sum depend on the processor's vector units.
    return re.sub(r"-?\d+\.\d{8,}(e[-+]?\d+)?", lambda found: f"{float(found.group()):.12g}", text)


def _without_sentences(value: Any) -> Any:
    """Return a tree of JSON without texts of several words."""
    if isinstance(value, dict):
        return {key: _without_sentences(item) for key, item in value.items() if not _is_sentence(item)}
    if isinstance(value, list | tuple):
        return [_without_sentences(item) for item in value if not _is_sentence(item)]
    return value


def _is_sentence(value: object) -> bool:
    return isinstance(value, str) and " " in value


def terminal(folder: str) -> str:
    """Return what the command that measured the result prints."""
    text, result, kind = io.StringIO(), dlemu.load_result(folder), kind_of(folder)
    assert kind is not None
    show(kind, getattr(result, "summary", result), folder, Console(width=WIDTH, file=text, color_system=None))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
