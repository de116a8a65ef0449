"""A sweep from the command line to sweep.json and the table."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from datagen.errors import UserError
from datagen.inspection import inspect
from dlemu.cli import complain
from dlemu.cli.options import again, check_launcher, report_result, take_word
from dlemu.comm import Interrupted, interrupt_once
from dlemu.config import check_runnable, datagen_command, load
from dlemu.config.points import Point, check_points, points
from dlemu.config.schema import Workload
from dlemu.report.sweep_terminal import print_sweep
from dlemu.run.run_folder import new_folder
from dlemu.sizing.store import SWEEP, check_same, read_answer, save_answer
from dlemu.sizing.sweep import sweep, train_point


def run_sweep(overrides: Sequence[str], config_dir: str | None) -> int:
    """Run all points and return the exit status; raises UserError before the first for what is wrong with any."""
    launcher, words = take_word(overrides, "launcher")
    check_launcher("sweep", launcher)
    wanted, words = take_word(words, "output.folder")
    found = points(words)
    check_points(found)
    first = _check(found, config_dir)
    folder = wanted or new_folder(first.model.name, "sweep-")
    question = {"overrides": words, "launcher": launcher}
    done = _done(folder, question)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once())
    err = Console(stderr=True)
    err.print(Text(f"results: {folder}; {len(found)} points, {len(done)} of them done"), soft_wrap=True)
    options = ("--config-dir", config_dir) if config_dir else ()
    run = train_point(
        options,
        launcher,
        lambda point: err.print(Text(f"{_told(point)} ..."), soft_wrap=True),
    )
    try:
        swept = sweep(question, found, folder, done, run, lambda so_far: save_answer(folder, so_far, SWEEP))
    except Interrupted as stop:
        name = signal.Signals(stop.signal_number).name
        complain(f"interrupted by {name}; finished points are kept: {again(folder)}")
        return stop.exit_status
    save_answer(folder, swept, SWEEP)
    print_sweep(swept, folder, Console())
    report_result(first.output.report, folder)
    return max((point["exit_status"] or 0 for point in swept["points"]), default=0)


def _check(found: Sequence[Point], config_dir: str | None) -> Workload:
    """Check every point before any of them runs; return the first one's workload."""
    workloads: list[Workload] = []
    problems: dict[str, str] = {}
    for point in found:
        try:
            workload = load(point.words, config_dir=config_dir)
            check_runnable(workload)
            if workload.dataset not in [other.dataset for other in workloads]:
                inspect(workload.dataset, command_hint=datagen_command(workload))
            workloads.append(workload)
        except UserError as error:
            problems.setdefault(str(error), _told(point))  # one missing dataset is one problem
    if problems:
        raise UserError("\n".join(f"{first}: {error}" for error, first in problems.items()))
    return workloads[0]


def _done(folder: str, question: dict[str, Any]) -> list[dict[str, Any]]:
    saved = read_answer(folder, SWEEP)
    if saved is None:
        return []
    if saved["complete"] and all(point["failure"] is None for point in saved["points"]):
        raise UserError(f"{folder} holds a finished sweep; set output.folder to a new folder, or read its {SWEEP}")
    check_same(folder, saved["question"], json.loads(json.dumps(question)))
    return [point for point in saved["points"] if point["failure"] is None]


def _told(point: Point) -> str:
    return " ".join(f"{key}={value}" for key, value in point.settings.items())
