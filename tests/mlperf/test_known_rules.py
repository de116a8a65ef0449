"""The table of rules: every rule that the code gives stands in it, and the page is made of it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from dlemu.mlperf.known_rules import GROUPS, KNOWN, official_name

ROOT = Path(__file__).parents[2]
GIVEN = re.compile(
    r'(?:"(?:error|warning|info)"|severity|exact|leaf|leaf\.path|result\.path),\s*"([a-z]+(?:\.[a-z_]+)?)"'
)
UNAPPLIED = re.compile(r'unapplied\(\s*"([a-z._]+)"')


def test_every_rule_that_the_code_gives_is_described() -> None:
    given = set()
    for path in (ROOT / "dlemu" / "mlperf").rglob("*.py"):
        text = path.read_text()
        given |= set(GIVEN.findall(text)) | set(UNAPPLIED.findall(text))
    given -= {"error", "warning", "info"}
    assert len(given) > 60
    assert given - KNOWN.keys() == set()


def test_no_rule_stands_twice_and_each_says_what_it_means() -> None:
    rules = [rule for group in GROUPS.values() for rule in group]
    assert len(rules) == len(KNOWN)
    assert all(
        rule.meaning and rule.editions and rule.severity.startswith(("error", "warning", "info")) for rule in rules
    )


def test_rules_are_called_as_the_editions_checker_calls_them() -> None:
    assert official_name("dataset.size", "2.0", "closed") == "check_num_files_train"
    assert official_name("dataset.size", "3.0", "closed") == "3.1.2 trainingRecalculateDatasetSize"
    assert official_name("dataset.size", "1.0", "closed") is None
    assert official_name("overrides.unknown", "3.0", "open") == "3.6.3 trainingOpenSubmissionParameters"
    assert official_name("runs.copied", "3.0", "closed") is None


def test_the_page_of_rules_is_made_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    page = importlib.import_module("documentation.mlperf_rules").page()
    assert (ROOT / "docs" / "mlperf-rules.md").read_text() == page, "scripts/docs makes it anew"
    assert all(f"| `{name}` |" in page for name in KNOWN)
