"""Figures of a run for Prometheus: what its parsers take, and whose files are replaced."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from datagen.errors import UserError
from dlemu.results.openmetrics import check_replaceable, metrics_text, write_metrics
from dlemu.results.progress import Figure, Progress
from dlemu.telemetry._live import LiveReadings
from dlemu.telemetry._log import log_path

LABELS = {"workload": "unet3d", "run": 'results/a "quoted" \\ folder'}
SAMPLE = re.compile(r'dlemu_([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (-?[0-9.e+-]+)')
PROGRESS = Progress(
    at="",
    done_ratio=0.25,
    seconds_left=12.5,
    figures=(
        Figure("read_bytes_per_second", 2.148e8, "Bytes read"),
        *(Figure("device_queue_depth", depth, "Requests", {"device": name}) for name, depth in (("a", 1), ("b", 2))),
    ),
)


def samples(text: str) -> list[tuple[str, str, float]]:
    """Return name, labels and value of each sample; every family is announced once, before its samples."""
    found, families = [], []
    *lines, last = text.splitlines()
    assert last == "# EOF"
    assert text.endswith("\n")
    for line in lines:
        if line.startswith("# TYPE "):
            families.append(line.removeprefix("# TYPE dlemu_").removesuffix(" gauge"))
        elif not line.startswith("# HELP "):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            assert sample[1] == families[-1]
            found.append((sample[1], sample[2], float(sample[3])))
    assert len(set(families)) == len(families)
    return found


def test_every_figure_is_a_gauge_with_its_labels() -> None:
    found = samples(metrics_text(PROGRESS, LABELS, active=True))
    values = {name: value for name, _, value in found}
    assert values == {
        "active": 1,
        "done_ratio": 0.25,
        "left_seconds": 12.5,
        "read_bytes_per_second": 2.148e8,
        "device_queue_depth": 2,
    }
    assert [labels for name, labels, _ in found if name == "device_queue_depth"] == [
        rf'workload="unet3d",run="results/a \"quoted\" \\ folder",device="{name}"' for name in ("a", "b")
    ]


def test_of_a_run_that_has_ended_only_that_is_left() -> None:
    assert [(name, value) for name, _, value in samples(metrics_text(PROGRESS, LABELS, active=False))] == [
        ("active", 0)
    ]


def test_only_files_of_dlemu_are_replaced(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "dlemu.prom", tmp_path / "node.prom"
    theirs.write_text("# HELP node_load1 load\n")
    check_replaceable(str(mine))
    write_metrics(str(mine), PROGRESS, LABELS, active=True)
    check_replaceable(str(mine))
    write_metrics(str(mine), None, LABELS, active=False)
    with pytest.raises(UserError, match="a file that dlemu did not write: name another, or remove it"):
        check_replaceable(str(theirs))
    with pytest.raises(UserError, match=r"there is no folder .*: create it, or name another"):
        check_replaceable(str(tmp_path / "missing" / "dlemu.prom"))
    with pytest.raises(UserError, match="can't be read"):
        check_replaceable(str(tmp_path))


def test_a_folder_that_takes_no_file_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_replaceable(str(tmp_path / "x.prom"))
    assert not list(tmp_path.iterdir()), "the check leaves nothing"
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write anywhere but read-only
    with pytest.raises(UserError, match=f"{tmp_path} can't be written: name a file in"):
        check_replaceable(str(tmp_path / "x.prom"))


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dlemu.prom")
    with pytest.raises(UserError, match="a pipe"):
        check_replaceable(str(tmp_path / "dlemu.prom"))


def test_a_pipe_among_the_logs_of_a_run_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(log_path(str(tmp_path), 0))
    readings = LiveReadings(str(tmp_path))
    readings.look()
    assert readings.of_devices("read_mb_per_second") == {}
