"""docs/mlperf-rules.md: every rule of `dlemu mlperf check` and `dlemu audit`, from the rules' own table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dlemu.contrib.mlperf.rules.known import ALL, KnownRule, rule_groups
from dlemu.contrib.mlperf.rules.official import listed, official_rules

_HEAD = """# What `dlemu mlperf check` knows

Made by `scripts/docs` from the package's `rules/known.yaml`. An `error` breaks a rule or contradicts the files, a
`warning` may do so, an `info` is for information. "Source" is where the rule comes from: the text of the rules, a
workload file, or the edition's own checker with its name of the rule (v2.0: `mlpstorage/rules.py`; v3.0: the submission
checker; https://github.com/mlcommons/storage). `dlemu` means that the rule is dlemu's own. `dlemu audit` applies the
rules of "Numbers", and with `--edition` also the rules on single runs, as `rules.NAME`.
"""


_OFFICIAL_HEAD = """## Every rule of v3.0's text

{count} rules of Rules.md and of the checker: {told}. `known`: the named rules of dlemu check it; `known otherwise`:
they check it differently or in part, as noted; `not checkable`: no file of a tree shows it. `dlemu mlperf check
--list-rules` prints this table.
"""


def page() -> str:
    """Return the page."""
    groups = [f"## {title}\n\n{_table(rules)}\n" for title, rules in rule_groups().items()]
    return "\n".join([_HEAD, *groups, _official()])


def _official() -> str:
    """Return the table of the official rules."""
    counts = Counter(rule.status for rule in official_rules())
    told = ", ".join(
        f"{counts[status]} {status}" for status in ("known", "known otherwise", "not checkable", "unknown")
    )
    rows = [f"| {rule.number} | {rule.name} | {rule.status} | {words} |" for rule, words in listed()]
    head = ["| rule | name | status | here |", "|---|---|---|---|"]
    return "\n".join([_OFFICIAL_HEAD.format(count=len(official_rules()), told=told), *head, *rows, ""])


def _table(rules: tuple[KnownRule, ...]) -> str:
    return "\n".join(["| rule | severity | editions | source | meaning |", "|---|---|---|---|---|", *_rows(rules)])


def _rows(rules: tuple[KnownRule, ...]) -> Iterator[str]:
    for rule in rules:
        editions = "all" if rule.editions == ALL else ", ".join(rule.editions)
        sources = [rule.text, *(f"v{edition}: `{name}`" for edition, name in rule.official.items())]
        source = "; ".join(filter(None, sources)) or "dlemu"
        severity = f"{rule.severity}; in v3.0's own round a warning" if rule.warned else rule.severity
        yield f"| `{rule.name}` | {severity} | {editions} | {source} | {rule.meaning} |"
