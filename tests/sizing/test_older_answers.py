"""Sweeps and comparisons that version 1 wrote are read, printed and drawn."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import dlemu
from datagen.errors import UserError
from dlemu.results.figures import Value
from dlemu.studies.answers import Comparison, SweepAnswer, read_comparison
from dlemu.studies.compare.page import open_page, print_comparison
from tests.report.folders import write_checkpoint_sweep, write_sweep

TIME = {
    "a": 90.0,
    "a_half_width": 1.0,
    "b": 100.0,
    "b_half_width": None,
    "difference_percent": -10.0,
    "half_width_percent": None,
    "distinct": None,
}
COUNT = {
    "settings": {},
    "accelerators": 2,
    "passed": True,
    "limited_by": "storage",
    "threshold_percent": 90.0,
    "ceiling_au_percent": 99.0,
    "metrics": {
        "total_seconds": {"mean": 90.0, "half_width": 1.0},
        "au_sustained_percent": {"mean": 95.0, "half_width": None},
    },
}
DATASET = {
    "data_folder": "/mnt/a",
    "format": "npz",
    "num_files_train": 4,
    "num_samples_per_file": 1,
    "total_bytes": 4000,
}
ABOUT: dict[str, Any] = {
    "started_at": "2026",
    "hosts": [],
    "storage": None,
    "devices": [],
    "dataset": DATASET,
    "how": {"engine": "fast"},
}
COMPARED: dict[str, Any] = {
    "schema_version": 1,
    "a": "x",
    "b": "y",
    "verdict": "A takes less",
    "runs": [
        {
            "settings": {},
            "ranks": [2, 2],
            "epochs": [3, 3],
            "passed": [True, False],
            "limited_by": ["storage", None],
            "metrics": {"total_seconds": TIME},
            "plan": None,
        }
    ],
    "sides": [
        {"name": name, "workload": "unet3d", "counts": [COUNT], "about": about}
        for name, about in (("x", ABOUT), ("y", None))
    ],
    "issues": [],
}
SAVED = {"title": "small: checkpoints of 2 ranks", "workload": "small", "complete": True, "ranks": 2}
OF_CHECKPOINTS: dict[str, Any] = {
    "schema_version": 1,
    "a": "x",
    "b": "y",
    "verdict": "writing: A takes less",
    "metrics": {"write_slowest_seconds": TIME},
    "sides": [SAVED | {"name": name, "write_seconds": [89.0, 91.0], "write_limited_by": "host CPU"} for name in "xy"],
    "issues": ["B: x"],
}


def test_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text(json.dumps(COMPARED))
    answer = dlemu.load_result(tmp_path)
    assert isinstance(answer, Comparison)
    assert answer.kind == "training"
    (pair,) = answer.runs
    assert pair.limited_by == {"run": ("storage", None)}
    figures = answer.sides[0].runs[0].figures
    assert figures.metrics["total_seconds"] == Value(90.0, 1.0)
    assert (figures.mean("ceiling_au_percent"), figures.threshold_percent, figures.ranks) == (99.0, 90.0, 2)
    assert answer.sides[0].about is not None
    assert answer.sides[0].about.facts["dataset"] == "4 npz files, 4,000 bytes"
    out = io.StringIO()
    print_comparison(answer, Console(file=out, width=100))
    assert "total time (s)" in out.getvalue()
    assert "what was measured" not in str(open_page(str(tmp_path)).page.verdict)


def test_a_comparison_of_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "compare_checkpoints.json").write_text(json.dumps(OF_CHECKPOINTS))
    answer = read_comparison(str(tmp_path))
    assert (answer.kind, answer.verdict) == ("checkpoint", "writing: A takes less")
    assert answer.runs[0].limited_by == {"writing": ("host CPU", "host CPU"), "reading": (None, None)}
    times = answer.sides[0].runs[0].figures.metrics["write_slowest_seconds"]
    assert times == Value(90.0, 1.0, (89.0, 91.0))
    assert open_page(str(tmp_path)).page.tiles[0].name == "one checkpoint written, A to B"


def test_sweeps(tmp_path: Path) -> None:
    """The makers of these folders write version 1."""
    trained = dlemu.load_result(write_sweep(tmp_path / "trained"))
    assert isinstance(trained, SweepAnswer)
    assert trained.schema_version == 2
    figures = trained.points[4].figures
    assert figures is not None
    assert (figures.kind, figures.ranks, figures.limited_by) == ("training", 16, {"run": "storage"})
    assert figures.metrics["app_mb_per_second"].each == (700.0,) * 5
    saved = dlemu.load_result(write_checkpoint_sweep(tmp_path / "saved"))
    assert isinstance(saved, SweepAnswer)
    figures = saved.points[0].figures
    assert figures is not None
    assert (figures.kind, figures.limited_by["writing"], figures.mean("checkpoint_gib")) == (
        "checkpoint",
        "host CPU",
        10,
    )


@pytest.mark.parametrize("damage", [{"sides": 3}, {"sides": [{}, {}]}, {"runs": [3]}, {"kind": 1, "runs": None}])
def test_damage_is_no_traceback(tmp_path: Path, damage: dict[str, Any]) -> None:
    (tmp_path / "compare.json").write_text(json.dumps(COMPARED | damage))
    with pytest.raises(UserError, match=r"compare\.json is damaged"):
        read_comparison(str(tmp_path))
