"""The documents say what the code does: every key, column and metric has its line."""

from __future__ import annotations

import importlib
import re
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from datagen.registry import names
from dlemu.config.schema import Checkpoint
from dlemu.emulator.steplog import STEP_COLUMNS
from dlemu.results.folder import write_run
from dlemu.results.run import make_run
from dlemu.results.summary import SCHEMA_VERSION, Metrics
from dlemu.telemetry import Scope, Task, start_recorder
from tests.runs import make_job, make_log

DOCS = Path(__file__).parent.parent / "docs"


def in_code(text: str) -> set[str]:
    """Names between backticks, each part of a dotted one; fenced blocks are no sentences."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {part for code in re.findall(r"`([^`]+)`", text) for part in re.split(r"[^A-Za-z0-9_]+", code)}


def test_the_schema_of_the_summary_stands_in_its_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS.parent / "scripts")
    page = (DOCS / "results.md").read_text()
    assert page == importlib.import_module("documentation.__main__").written(page), "scripts/docs makes it anew"
    assert f"schema_version {SCHEMA_VERSION}" in page
    described = page.split("made by scripts/docs")[1]
    assert "| `au_percent` |" in described
    assert "| `cpu_limit` |" in described, "types within types are described as well"


def test_what_a_run_of_checkpoints_leaves_stands_in_its_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS.parent / "scripts")
    page = (DOCS / "checkpoints.md").read_text()
    made = importlib.import_module("documentation.__main__").written_checkpoints(page)
    assert page == made, "scripts/docs makes it anew"
    known = {field.name for field in fields(Checkpoint)}
    named = set(re.findall(r"checkpoint\.(\w+)=", page))
    assert named <= known, named - known
    assert {"odirect", "writers", "keep_last", "content", "verify", "reshard", "read_as", "asynchronous"} <= named


def test_every_column_of_the_step_log_is_documented() -> None:
    text = (DOCS / "results.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", text.split("## 3. steps.parquet")[1].split("## 4.")[0], flags=re.MULTILINE)
    assert rows == list(STEP_COLUMNS)


FIGURES = ("figures", "series_figures", "compare_figures", "probe_figures", "prediction_figures", "pack_figures")


@pytest.mark.parametrize("folder", FIGURES)
def test_every_figure_of_a_page_is_documented(folder: str) -> None:
    rows = re.findall(r"^\|.*?\| `(\w+)` \|", (DOCS / "report.md").read_text(), flags=re.MULTILINE)
    assert set(names(f"dlemu.report.{folder}")) - {"figure_base"} <= set(rows)


def test_every_metric_of_the_probes_is_documented(tmp_path: Path) -> None:
    text = (DOCS / "telemetry.md").read_text()
    recorder = start_recorder(Task(scope=Scope(folders=(str(tmp_path),)), node=0, interval_seconds=0.05), str(tmp_path))
    time.sleep(0.2)
    told = recorder.stop()
    assert told is not None
    assert {series.metric for series in told.series} - in_code(text) <= {"cpu_full_percent", "memory_full_percent"}
    assert set(names("dlemu.telemetry")) <= in_code(text)


def test_every_metric_has_its_formula() -> None:
    text = (DOCS / "metrics.md").read_text()
    plain = {"app_bytes", "read_calls", "samples", "epochs", "steps_per_epoch", "au_threshold_percent"}
    assert sorted({field.name for field in fields(Metrics)} - plain - in_code(text)) == []


@pytest.mark.parametrize("name", ["metrics.md", "results.md", "telemetry.md"])
def test_documents_name_no_column_or_file_that_is_not_there(name: str) -> None:
    text = (DOCS / name).read_text()
    columns = {part for part in in_code(text) if part.endswith("_ns")}
    assert columns <= set(STEP_COLUMNS) | {"started_ns", "ended_ns", "time_ns", "clock_offsets_ns"}
    assert all((DOCS / link).exists() for link in re.findall(r"\]\((\w+\.md)\)", text))


def test_the_recipe_of_the_results_page_gives_the_headline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = re.findall(r"```python\n(.*?)```", (DOCS / "results.md").read_text(), flags=re.DOTALL)[0]
    job = make_job(folder=str(tmp_path / "results/unet3d/20260102-030405-4711"))
    run = make_run(job, make_log(job))
    write_run(run)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(recipe, names)
    assert run.summary.au is not None
    assert names["au_percent"] == pytest.approx(run.summary.au.mean, rel=1e-12)
