"""Finds the largest load that a storage sustains: runs at values of its setting until the bracket is narrow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from datagen.errors import UserError
from dlemu.config import digest, load
from dlemu.config.overrides import override, take_word
from dlemu.config.published import without_secrets
from dlemu.results.kinds import kind_wanted
from dlemu.runner.events import ignore
from dlemu.runner.job import checked
from dlemu.runner.run_folder import new_folder
from dlemu.runner.run_list import Planned, RunsPlanned
from dlemu.studies.answers import SweepAnswer, SweepQuestion, edge
from dlemu.studies.prerequisites import Child, OnEvent, check_launcher
from dlemu.studies.sweep.run import Sweep

CLOSE = 1.1
"""The search ends when the least value that fails is at most this factor above the largest that passes."""
_FARTHEST = 1024.0
"""Values tried are at most the first one x this, and at least the first one / this."""


def find_bracket(overrides: Sequence[str], *, config_dir: str | None = None, on_event: OnEvent = ignore) -> SweepAnswer:
    """Find the largest passing value of the setting that a kind of job searches over (`Kind.asks`).

    The first value tried is the workload's. An interrupted search goes on from its `output.folder`. Raises UserError,
    also where a run neither passes nor fails its limits; DlemuError where a run ends with an error.
    """
    launcher, words = take_word(overrides, "launcher")
    check_launcher("size", launcher)
    wanted_folder, words = take_word(words, "output.folder")
    workload = load(words, config_dir=config_dir)
    kind = kind_wanted(workload)
    checked(workload, kind.load_job().job)
    section, _, name = kind.scaled_by.partition(".")
    first = float(str(workload.kinds[section][name]))
    child = Child.of(kind, workload, words, config_dir=config_dir, launcher=launcher)
    question = SweepQuestion(
        overrides=tuple(without_secrets(words)),
        launcher=launcher,
        most_of=kind.scaled_by,
        settings_digest=digest([workload]),
    )
    runs = BracketSearch(wanted_folder or new_folder(workload.results_name, "size-"), question, (), on_event)
    runs.resume()
    return runs.search(child, (section, name), first, wants_page=workload.output.report)


class BracketSearch(Sweep):
    """The runs of a search, as points of a sweep in which the results so far decide the next value."""

    noun, goes_on = "search", False

    def resume(self) -> None:
        """Continue with the runs of an interrupted search; one that failed has no figures, and is repeated."""
        super().resume()
        self.runs = [run for run in self.runs if self.is_done(run)]

    def search(self, child: Child, path: tuple[str, str], first: float, *, wants_page: bool) -> SweepAnswer:
        """Run values until the bracket is narrow enough; return all runs as a sweep."""
        key = ".".join(path)
        self.on_event(RunsPlanned(folder=self.folder, runs=None, finished_runs=len(self.runs), wants_page=wants_page))
        while (value := next_value(self._tried(key), first)) is not None:
            word = override(path, value)
            planned = Planned(
                what=replace(child, words=(*child.words, word)),
                name=f"point-{len(self.runs) + 1:02}",
                label=word,
                settings={key: f"{value:g}"},
            )
            self.run_one(planned)
        return self.save(complete=True)

    def _tried(self, key: str) -> dict[float, bool]:
        """Return value -> passed. A run without a verdict fails if a smaller value passed; else raises UserError."""
        passed = {float(point.settings[key]): point.figures.passed for point in self.runs if point.figures}
        for point in self.runs:
            value = float(point.settings[key])
            if passed[value] is None and not any(passed[other] for other in passed if other < value):
                raise UserError(
                    f"the run at {key}={value:g} neither passed nor failed ({point.figures and point.figures.verdict})"
                    ": wanted a limit to judge it by, and runs that are long enough"
                )
        return {value: bool(one) for value, one in passed.items()}


def next_value(tried: Mapping[float, bool], first: float) -> float | None:
    """Return the value to try next, to three digits; None when the bracket is narrow, or the edge too far away."""
    passing, failing = edge(sorted(tried.items()))
    if not tried:
        return first
    if failing is None:
        return 2 * passing if passing and passing < _FARTHEST * first else None
    if passing is None:
        return failing / 2 if failing > first / _FARTHEST else None
    middle = float(f"{math.sqrt(passing * failing):.3g}")
    return middle if failing / passing > CLOSE and passing < middle < failing else None
