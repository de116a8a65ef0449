"""The documents say what the code does: every key, column and metric has its line."""

from __future__ import annotations

import importlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from datagen.registry import names
from dlemu.config.schema import Checkpoint, settings_class
from dlemu.jobs.training.steplog import STEP_COLUMNS
from dlemu.jobs.training.summary import Metrics
from dlemu.metrics.verdict import VerdictCode
from dlemu.results.answer_files import ANSWER_VERSION
from dlemu.telemetry import Scope, start_recorder
from tests.parts import needs_all_parts
from tests.runs import whole_run, write_run

DOCS = Path(__file__).parent.parent / "docs"


def in_code(text: str) -> set[str]:
    """Names between backticks, each part of a dotted one; fenced blocks are no sentences."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {part for code in re.findall(r"`([^`]+)`", text) for part in re.split(r"[^A-Za-z0-9_]+", code)}


@pytest.fixture
def documentation(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that makes pages; scripts/ is no package of the product."""
    monkeypatch.syspath_prepend(DOCS.parent / "scripts")
    return importlib.import_module("documentation.__main__")


@needs_all_parts
def test_pages_that_are_made_are_up_to_date(documentation: Any) -> None:
    """The trademark at the end of each page that names MLPerf is made, too."""
    assert {*documentation.PAGES, *documentation.PARTS} <= set(documentation.pages())
    for name in documentation.pages():
        assert (DOCS / name).read_text() == documentation.made(name), f"{name}: scripts/docs makes it anew"


def test_the_schema_of_results_stands_in_its_documents() -> None:
    page = (DOCS / "results.md").read_text()
    assert f"schema_version {ANSWER_VERSION}" in page
    keys = (DOCS / "answers.md").read_text()
    assert {"au_percent", "cpu_limit"} <= in_code(keys), "types within types are described as well"
    page = (DOCS / "checkpoints.md").read_text()
    known = {field.name for field in fields(Checkpoint)}
    named = set(re.findall(r"checkpoint\.(\w+)=", page))
    assert named <= known, named - known
    assert {"odirect", "writers", "keep_last", "verify", "read_as", "asynchronous"} <= named
    assert "`au_sustained_percent` (%, higher)" in keys


def test_every_setting_stands_in_the_reference_or_on_the_page_of_its_part() -> None:
    page = (DOCS / "settings.md").read_text()
    for part in DOCS.parent.glob("dlemu/contrib/*/docs/*.md"):
        page += part.read_text().partition("from the part's settings.py")[2]
    lines = [line.partition(": ") for line in page.splitlines() if line.startswith("- `")]
    named = {name for line in page.splitlines() for name in re.findall(r"`([\w.]+)`", line)}
    assert named >= set(keys_below("", settings_class()))
    assert not [name for name, _, meaning in lines if not meaning], "no setting without a meaning"


def keys_below(where: str, section: Any) -> Iterator[str]:
    hints = get_type_hints(section)
    for name, hint in ((part.name, hints[part.name]) for part in fields(section)):
        if is_dataclass(hint) and not hasattr(hint, "from_value"):
            yield from keys_below(f"{where}{name}.", hint)
        else:
            yield f"{where}{name}"


def test_every_verdict_has_its_way_out() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    assert {str(code) for code in VerdictCode} <= in_code(page)


def test_every_column_of_the_step_log_is_documented() -> None:
    text = (DOCS / "answers.md").read_text()
    rows = re.findall(r"^- `(\w+)`: ", text.split("## steps.parquet")[1].split("## ")[0], flags=re.MULTILINE)
    assert rows == list(STEP_COLUMNS)


def test_every_metric_of_the_probes_is_documented(tmp_path: Path) -> None:
    text = (DOCS / "telemetry.md").read_text()
    recorder = start_recorder(Scope(folders=(str(tmp_path),), interval_seconds=0.05), str(tmp_path))
    time.sleep(0.2)
    told = recorder.stop()
    assert told is not None
    assert {series.metric for series in told.series} - in_code(text) <= {"cpu_full_percent", "memory_full_percent"}
    assert set(names("dlemu.telemetry")) <= in_code(text)


def test_every_metric_has_its_formula() -> None:
    text = (DOCS / "metrics.md").read_text()
    plain = {"app_bytes", "samples", "epochs", "steps_per_epoch", "au_threshold_percent"}
    assert sorted({field.name for field in fields(Metrics)} - plain - in_code(text)) == []


@pytest.mark.parametrize("name", ["metrics.md", "results.md", "telemetry.md"])
def test_documents_name_no_column_or_file_that_is_not_there(name: str) -> None:
    text = (DOCS / name).read_text()
    columns = {part for part in in_code(text) if part.endswith("_ns")}
    assert columns <= set(STEP_COLUMNS) | {"started_ns", "ended_ns", "time_ns", "clock_offsets_ns"}


def test_the_recipe_of_the_results_page_gives_the_headline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = re.findall(r"```python\n(.*?)```", (DOCS / "results.md").read_text(), flags=re.DOTALL)[0]
    run = whole_run(folder=str(tmp_path / "results/unet3d/20260102-030405-4711"))
    write_run(run)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(recipe, names)
    assert run.summary.au is not None
    assert names["au_percent"] == pytest.approx(run.summary.au.mean, rel=1e-12)


def fault_rows() -> list[list[str]]:
    """Return the rows of docs/evidence/faults whose last cell is the test."""
    tables = [json.loads(path.read_text())["tables"][0] for path in (DOCS / "evidence" / "faults").glob("*.json")]
    return [row for table in tables if table["columns"][-1] == "test" for row in table["rows"]]


@needs_all_parts
def test_each_fault_names_a_test_that_there_is() -> None:
    rows = fault_rows()
    assert len(rows) > 60
    for *_, last in rows:
        tests = re.findall(r"`((?:tests|dlemu/contrib)/[\w/]+/test_\w+\.py)`", last)
        assert tests or "`scripts/fuzz" in last, last
        assert all((DOCS.parent / test).is_file() for test in tests), last


def test_what_a_user_may_fear_has_a_proof() -> None:
    table = (DOCS / "reliability.md").read_text().partition("| you fear |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) > 5
    assert [row for row in rows if not re.search(r"\| `tests/[\w/]+\.py` \|$", row)] == []


@needs_all_parts
def test_tests_that_documents_name_are_there() -> None:
    pages = [*DOCS.rglob("*.md"), *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md"))]
    named = {test for page in pages for test in re.findall(r"`(tests/[\w/.]+)`", page.read_text())}
    assert len(named) > 10
    assert [test for test in sorted(named) if not (DOCS.parent / test).exists()] == []


@needs_all_parts
def test_the_packages_of_mutants_are_where_code_and_tests_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose code or tests have moved has no mutants, or none that are found."""
    monkeypatch.syspath_prepend(DOCS.parent / "scripts")
    for name, package in importlib.import_module("mutation.packages").PACKAGES.items():
        for path in (*package.code, *(test.partition("::")[0] for test in (*package.tests, *package.without_tests))):
            assert list(DOCS.parent.glob(path)), f"{name}: {path}"
