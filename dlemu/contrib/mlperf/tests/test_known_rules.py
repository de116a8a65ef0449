"""The table of rules: every rule that the code gives stands in it, and the page is made of it."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from datagen.errors import UserError
from dlemu.contrib.mlperf.command import command
from dlemu.contrib.mlperf.rules.known import known_rules, official_name, official_rules, rule_groups

ROOT = Path(__file__).parents[4]
GIVEN = re.compile(r'(?:by_rule|by_rule_at|unapplied|unapplied_at|missing|config_files)\([^"()]*"([a-z]+\.[a-z_]+)"')


def test_every_rule_that_the_code_gives_is_described() -> None:
    given = set()
    for path in (ROOT / "dlemu" / "contrib" / "mlperf").glob("[!t]*/*.py"):
        given |= set(GIVEN.findall(path.read_text()))
    assert len(given) > 100
    assert given - known_rules().keys() == set()


def test_no_rule_stands_twice_and_each_says_what_it_means() -> None:
    rules = [rule for group in rule_groups().values() for rule in group]
    lines = (ROOT / "dlemu/contrib/mlperf/rules/known.yaml").read_text().splitlines()
    listed = sum(line.startswith("  ") for line in lines)  # of two with one name YAML takes the last
    assert len(rules) == len(known_rules()) == listed
    assert all(
        rule.meaning and rule.editions and rule.severity.startswith(("error", "warning", "info")) for rule in rules
    )


def test_rules_are_called_as_the_editions_checker_calls_them() -> None:
    assert official_name("dataset.size", "2.0", "closed") == "check_num_files_train"
    assert official_name("dataset.size", "3.0", "closed") == "3.1.2 trainingRecalculateDatasetSize"
    assert official_name("overrides.unknown", "3.0", "open") == "3.6.3 trainingOpenSubmissionParameters"
    assert official_name("runs.copied", "3.0", "closed") == ""


def test_the_page_of_rules_is_made_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    page = importlib.import_module("documentation.mlperf_rules").page()
    assert (ROOT / "dlemu/contrib/mlperf/docs/mlperf-rules.md").read_text() == page, "scripts/docs makes it anew"
    assert all(f"- `{name}`:" in page for name in known_rules())


def test_every_official_rule_has_a_row_and_names_rules_that_are_known() -> None:
    assert len({rule.number for rule in official_rules()}) == len(official_rules())
    assert {name for rule in official_rules() for name in rule.ours} <= known_rules().keys()
    assert not [rule for rule in official_rules() if rule.status == "unknown"]
    called = {
        name.split()[0] for known in known_rules().values() for name in known.official.values() if name[0].isdigit()
    }
    assert called - {rule.number for rule in official_rules()} == set()


@pytest.mark.parametrize("number", ["2.1.7", "2.1.18", "3.3.6", "4.6.2", "EDN-03"])
def test_what_is_checked_in_part_or_otherwise_is_not_called_known(number: str) -> None:
    (rule,) = [rule for rule in official_rules() if rule.number == number]
    assert rule.status == "known otherwise"


def test_the_official_rules_are_printed_with_the_count_of_unknown_ones() -> None:
    printed = CliRunner().invoke(command, ["check", "--list-rules"])
    assert printed.exit_code == 0
    assert printed.output.splitlines()[-1] == f"{len(official_rules())} rules, 0 of them unknown here"
    assert all(rule.number in printed.output for rule in official_rules())
    told = json.loads(CliRunner().invoke(command, ["check", "--list-rules", "--json"]).output)
    assert {row["status"] for row in told} <= {"known", "known otherwise", "not checked", "unknown"}
    assert isinstance(CliRunner().invoke(command, ["check"]).exception, UserError)
