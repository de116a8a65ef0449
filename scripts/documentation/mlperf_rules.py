"""mlperf-rules.md: every rule of `dlemu mlperf check` and `dlemu audit`, from the rules' own table."""

from __future__ import annotations

from collections import Counter

from dlemu.contrib.mlperf.rules.known import ALL, KnownRule, official_rules, rule_groups

_HEAD = """# What `dlemu mlperf check` knows

Made by `scripts/docs` from the part's `rules/known.yaml`. An `error` breaks a rule or contradicts the files, a
`warning` may do so, an `info` is for information; a rule without one of these words is an `error`. It holds in all
editions, unless it names some. The last words in brackets are its source: the text of the rules, a workload file, or
the edition's own checker (https://github.com/mlcommons/storage) with its name or number of the rule; a rule without
source is dlemu's own. `dlemu audit` applies the rules of "Numbers".

Of the {count} rules of v3.0's text and checker {statuses}.
`known`: the rules below check it; `known otherwise`: they check it differently or in part; `not checked`: no file of
a tree shows it, or as noted. `dlemu mlperf check --list-rules` prints each of them, with the rules that check it.
"""


def page() -> str:
    """Return the page."""
    counts = Counter(rule.status for rule in official_rules())
    statuses = ", ".join(f"{count} are {status}" for status, count in counts.most_common())
    groups = ("\n".join([f"## {title}", "", *map(_line, rules), ""]) for title, rules in rule_groups().items())
    return "\n".join([_HEAD.format(count=len(official_rules()), statuses=statuses), *groups])


def _line(rule: KnownRule) -> str:
    where = " and ".join({"published": "v3.0's own round"}.get(each, f"v{each}") for each in sorted(rule.warned))
    severity = (
        f"{'' if rule.severity == 'error' else f'{rule.severity}; '}warning in {where}" if where else rule.severity
    )
    editions = "" if rule.editions == ALL else f"v{' and v'.join(rule.editions)}"
    sources = [rule.text, *(f"v{edition}: `{name.split()[0]}`" for edition, name in rule.official.items())]
    said = "; ".join(filter(None, ["" if severity == "error" else severity, editions, *sources]))
    return f"- `{rule.name}`: {rule.meaning}{f' ({said})' if said else ''}"
