"""mlperf-rules.md: every rule of `dlemu mlperf check` and `dlemu audit`, from the rules' own table."""

from __future__ import annotations

from dlemu.contrib.mlperf.rules.known import ALL, KnownRule, rule_groups

_HEAD = """# What `dlemu mlperf check` knows

Made by `scripts/docs` from the part's `rules/known.yaml`. An `error` breaks a rule or contradicts the files, a
`warning` may do so, an `info` is for information; a rule without one of these words is an `error`. It holds in all
editions, unless it names some. The last words in brackets are its source: the text of the rules, a workload file, or
the edition's own checker (https://github.com/mlcommons/storage) with its name or number of the rule; a rule without
source is dlemu's own. `dlemu audit` applies the rules of "Numbers". Rules of v3.0's text that are named nowhere here
are not checked.
"""


def page() -> str:
    """Return the page."""
    groups = ("\n".join([f"## {title}", "", *map(_line, rules), ""]) for title, rules in rule_groups().items())
    return "\n".join([_HEAD, *groups])


def _line(rule: KnownRule) -> str:
    where = " and ".join({"published": "v3.0's own round"}.get(each, f"v{each}") for each in sorted(rule.warned))
    severity = (
        f"{'' if rule.severity == 'error' else f'{rule.severity}; '}warning in {where}" if where else rule.severity
    )
    editions = "" if rule.editions == ALL else f"v{' and v'.join(rule.editions)}"
    sources = [rule.text, *(f"v{edition}: `{name.split()[0]}`" for edition, name in rule.official.items())]
    details = "; ".join(filter(None, ["" if severity == "error" else severity, editions, *sources]))
    return f"- `{rule.name}`: {rule.meaning}{f' ({details})' if details else ''}"
