"""Renders a result as the terminal shows it with `--details`."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from dlemu.report.any_run import show
from dlemu.results.kinds import kind_named


def details(kind: str, answer: Any, folder: str = "results/x", *, width: int = 400, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal)
    show(kind_named(kind), answer, folder, console, details=True)
    return out.getvalue()
