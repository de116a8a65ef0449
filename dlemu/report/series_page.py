"""The page of a search, a sweep, or several runs side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from dlemu.report.page import Page, Table, Text, Words, tiles
from dlemu.report.run_page import environment_tables, plain
from dlemu.report.series import Point, Series
from dlemu.report.units import number

_COLUMNS = {
    "AU, %": "au_percent",
    "+-": "half_width_percent",
    "samples/s": "samples_per_second",
    "loader MB/s": "app_mb_per_second",
    "device MB/s": "device_mb_per_second",
    "largest device MB/s": "max_device_mb_per_second",
    "device latency, ms": "mean_device_read_latency_ms",
    "total s": "total_seconds",
}
_SIZE_TILES = (
    ("accelerators fed", "max_accelerators", "", "the largest count shown to pass"),
    ("pass line", "threshold_percent", "%", "AU at which a count passes"),
    ("one more would take", "for_one_more.wanted_mb_per_second", "MB/s", "at the pass line"),
    ("most delivered", "for_one_more.most_delivered_mb_per_second", "MB/s", "in any trial"),
    ("read probe", "probe_mb_per_second", "MB/s", "before the first trial"),
    ("time to the answer", "seconds", "s", "all trials"),
    ("the naive way", "naive_seconds", "s", "every count at full length, nominal"),
)
_TRIAL = ("au_percent", "half_width_percent", "app_mb_per_second", "device_mb_per_second", "seconds")


def series_page(series: Series) -> Page:
    """Return what stands on the page of several runs."""
    state, verdict = _verdict(series)
    return Page(
        title=_title(series),
        lead=_lead(series),
        state=state,
        verdict=verdict,
        tiles=tiles(series.answer, _SIZE_TILES) if series.kind == "size" else [],
        words=list(_words(series.answer)),
        tables=list(_tables(series)),
        texts=[Text("Full configuration of one of the runs (config.yaml)", series.run.config)] if series.run else [],
        source=os.path.basename(os.path.abspath(series.folder)) if series.kind != "runs" else series.folder,
    )


def _title(series: Series) -> str:
    lines = sorted({point.line for point in series.points})
    what = lines[0] if len(lines) == 1 else f"{len(lines)} lines"
    if series.kind == "size":
        return f"How many accelerators does this storage feed? {what}"
    return f"Sweep: {what}" if series.kind == "sweep" else f"{len(series.points)} runs: {what}"


def _lead(series: Series) -> str:
    run = series.run
    if run is None:
        return ""
    data = run.summary["dataset"]
    return f"{run.summary['started_at']}, on {', '.join(run.summary['hosts'][:4])}. Dataset in {data['data_folder']}."


def _verdict(series: Series) -> tuple[str, tuple[str, str]]:
    """Return the state of the page, and the verdict's word with the rest of its line."""
    answer = series.answer
    if series.kind == "size":
        said = f": {answer.get('verdict') or 'the search was interrupted'}"
        if not answer["complete"]:
            return "open", ("INCOMPLETE", said)
        passed = answer.get("passed")
        words = {True: "PASS", False: "FAIL", None: "NO VERDICT"}
        if answer.get("at_least"):
            said = f": {answer['max_accelerators']} of {answer['at_least']} wanted. {said.removeprefix(': ')}"
        return {True: "passed", False: "failed", None: "open"}[passed], (words[passed], said)
    passed_points = sum(point.passed is True for point in series.points)
    unfinished = series.kind == "sweep" and not answer["complete"]
    rest = " so far: the sweep was interrupted" if unfinished else ""
    return "open", (f"{passed_points} of {len(series.points)}", f" runs passed{rest}")


def _words(answer: dict[str, Any]) -> Iterator[Words]:
    limited = answer.get("limited_by")
    if limited:
        what = plain(limited["what"])
        title = "No more accelerators were tried" if what == "count" else f"The next count is limited by: {what}"
        yield Words(title, points=limited.get("evidence", []))
    host_only = answer.get("host_only")
    if host_only:
        could = plain(host_only.get("storage_could_feed"))
        seen = (
            f"It was seen to give {number(answer['storage_mb_per_second'])} MB/s, enough for about {could} accelerators"
        )
        yield Words("The host gave out first, not the storage", [f"{seen}: use a host with more cores, or several."])
    if answer.get("issues"):
        yield Words("What to know about these numbers", points=answer["issues"])
    failed = [one for one in answer.get("points", []) if one.get("failure")]
    if failed:
        points = [f"{plain(one['settings'])}: {one['failure']}" for one in failed]
        yield Words("Points that failed", points=points)


def _tables(series: Series) -> Iterator[Table]:
    columns = {
        name: key for name, key in _COLUMNS.items() if any(getattr(point, key) is not None for point in series.points)
    }
    head = ("run" if series.kind != "size" else "accelerator type", "accelerators", *columns, "passed", "limited by")
    rows = [_row(series, point, list(columns.values())) for point in series.points]
    yield Table("Counts" if series.kind == "size" else "Runs", head, rows, range(1, len(columns) + 2))
    trials = series.answer.get("trials", [])
    if trials:
        known = [
            (str(one["accelerators"]), *(number(one.get(key)) for key in _TRIAL), plain(one["settled"]))
            for one in trials
        ]
        head = ("accelerators", "AU, %", "+-", "loader MB/s", "device MB/s", "seconds", "settled")
        yield Table("Trials, in order", head, known, range(6), folded=True)
    question = series.answer.get("question")
    if question:
        yield Table("The question", (), [(key.replace("_", " "), plain(value)) for key, value in question.items()])
    if series.run is not None:
        yield Table(
            "How it was measured", (), [(key, plain(value)) for key, value in series.run.summary["how"].items()]
        )
        yield from environment_tables(series.run.summary)


def _row(series: Series, point: Point, keys: list[str]) -> list[str]:
    name = ", ".join(
        [
            point.line,
            *(f"{key.rpartition('.')[2]}={series.shown(point, key)}" for key in point.settings if key != "ranks"),
        ]
    )
    figures = [number(getattr(point, key)) for key in keys]
    passed = {True: "yes", False: "no", None: "open"}[point.passed]
    return [name, str(point.accelerators), *figures, passed, point.limited_by or "-"]
