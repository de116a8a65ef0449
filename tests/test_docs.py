"""The documents say what the code does: every key, column and metric has its line."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from datagen.registry import names
from dlemu.emulator.environment import describe_folder, describe_host
from dlemu.emulator.steplog import STEP_COLUMNS
from dlemu.results.folder import write_run
from dlemu.results.run import make_run
from dlemu.results.summary import SCHEMA_VERSION, Environment
from dlemu.telemetry import Scope, Task, start_recorder
from tests.runs import make_job, make_log, with_blocks, with_evaluation, with_telemetry

DOCS = Path(__file__).parent.parent / "docs"
NAMES_OF_OTHERS = ("packages",)
"""Keys whose own keys are no names of ours."""


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            if key not in NAMES_OF_OTHERS:
                yield from keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys(item)


def whole_summary() -> dict[str, Any]:
    dataset = make_job().workload.dataset
    job = make_job(**with_evaluation(40, dataset))
    summary = make_run(job, with_telemetry(make_log(job))).summary
    job = make_job(**with_blocks(5))
    checkpoints = make_run(job, make_log(job)).summary.checkpoints
    environment = Environment(hosts=(describe_host(),), storage=describe_folder("/"))
    whole: dict[str, Any] = msgspec.to_builtins(replace(summary, checkpoints=checkpoints, environment=environment))
    return whole


def in_code(text: str) -> set[str]:
    """Names between backticks, each part of a dotted one; fenced blocks are no sentences."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {part for code in re.findall(r"`([^`]+)`", text) for part in re.split(r"[^A-Za-z0-9_]+", code)}


def test_every_key_of_the_summary_is_documented() -> None:
    text = (DOCS / "results.md").read_text()
    assert sorted(set(keys(whole_summary())) - in_code(text)) == []
    assert f"schema_version {SCHEMA_VERSION}" in text


def test_every_column_of_the_step_log_is_documented() -> None:
    text = (DOCS / "results.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", text.split("## 3. steps.parquet")[1].split("## 4.")[0], flags=re.MULTILINE)
    assert rows == list(STEP_COLUMNS)


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
    assert sorted(set(whole_summary()["metrics"]) - plain - in_code(text)) == []


@pytest.mark.parametrize("name", ["metrics.md", "results.md", "telemetry.md"])
def test_documents_name_no_column_or_file_that_is_not_there(name: str) -> None:
    text = (DOCS / name).read_text()
    columns = {part for part in in_code(text) if part.endswith("_ns")}
    assert columns <= set(STEP_COLUMNS) | {"started_ns", "ended_ns", "time_ns", "clock_offsets_ns"}
    assert all((DOCS / link).exists() for link in re.findall(r"\]\((\w+\.md)\)", text))


def test_the_recipe_of_the_results_page_gives_the_headline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = re.findall(r"```python\n(.*?)```", (DOCS / "results.md").read_text(), flags=re.DOTALL)[0]
    job = make_job(folder=str(tmp_path / "results/unet3d/20260102-030405"))
    run = make_run(job, make_log(job))
    write_run(run)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(recipe, found)
    assert run.summary.au is not None
    assert found["au_percent"] == pytest.approx(run.summary.au.mean, rel=1e-12)
