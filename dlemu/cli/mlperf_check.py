"""`dlemu mlperf check`: finished runs, or a whole submission, held against MLPerf Storage's rules."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dlemu.mlperf.check.model import Checked, Located, Result
    from dlemu.mlperf.rules import Division

Line = tuple[str, dict[str, Any]]
"""A line and its style."""
_SHOWN = 3
_STYLES: dict[str, dict[str, Any]] = {"error": {"fg": "red", "bold": True}, "warning": {"fg": "yellow"}, "info": {}}


@click.command(name="check", short_help="Hold finished runs or a submission tree against the rules.")
@click.argument("folder", metavar="DIR")
@click.option("--edition", type=click.Choice(["1.0", "2.0", "3.0"]), help="Default: what the tree looks like.")
@click.option("--division", type=click.Choice(["closed", "open"]), help="Default: what the tree says, else closed.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write a line a finding as CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON mapping, for programs.")
def check_command(
    folder: str, edition: str | None, division: Division | None, csv_file: str | None, as_json: bool
) -> None:
    """Hold a submission tree, a results folder of mlpstorage, or a single run against MLPerf Storage's rules.

    \b
    dlemu mlperf check results/unet3d/mlperf-20251121-134501
    dlemu mlperf check submission/ --edition 3.0 --csv findings.csv
    dlemu mlperf check results/training/unet3d/run/20251121_134501

    AU and samples/s are recomputed from the ranks' own files; the word "success" counts for nothing. In brackets stands
    what the edition's own checker calls the rule.

    Exit status: 0 no rule is broken, 1 some rule is, 2 a usage error.
    """
    from dlemu.mlperf.check.judge import check_folder
    from dlemu.mlperf.check.tables import as_csv, plain

    checked = check_folder(folder, edition, division)
    if csv_file:
        _write(csv_file, as_csv(checked))
    if as_json:
        click.echo(json.dumps(plain(checked), indent=2))
    else:
        for line, style in lines(checked):
            click.secho(line, **style)
    raise SystemExit(0 if checked.valid else 1)


def lines(checked: Checked) -> Iterator[Line]:
    """Yield what is printed of a check: its results, its findings, its verdict."""
    for result in checked.results:
        yield _told(result, checked.root), {"bold": True}
    yield "", {}
    yield from finding_lines(checked)
    yield _verdict(checked)


def finding_lines(checked: Checked) -> Iterator[Line]:
    """Yield the findings; those that say the same of several places are told once."""
    for _, same in groupby(sorted(checked.findings, key=_sameness), key=_sameness):
        yield from _finding(list(same), checked.root)


def _sameness(one: Located) -> tuple[int, str, str, str, str]:
    found = one.finding
    return list(_STYLES).index(found.severity), found.rule, one.official or "", found.wanted, found.fix


def _finding(same: list[Located], root: str) -> Iterator[Line]:
    found, official = same[0].finding, same[0].official
    yield f"{found.severity} {found.rule}{f' [{official}]' if official else ''}", _STYLES[found.severity]
    yield f"  in      {_places(sorted({os.path.relpath(one.path, root) for one in same}))}", {}
    yield f"  seen    {_few(list(dict.fromkeys(one.finding.seen for one in same)), '; ')}", {}
    yield f"  wanted  {found.wanted}", {"dim": True}
    yield f"  fix     {found.fix}", {"dim": True}


def _places(paths: list[str]) -> str:
    """Return the paths, with what all of them have in common once."""
    if len(paths) == 1:
        return paths[0]
    above = os.path.commonpath(paths)
    below = _few([os.path.relpath(path, above or ".") for path in paths], ", ")
    return f"{above}: {below}" if above else below


def _few(texts: list[str], between: str) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return between.join(texts[:_SHOWN]) + more


def _told(result: Result, root: str) -> str:
    first = next((leaf for leaf in result.runs if leaf.run), None)
    count = f"{len(result.runs)} run{'s' if len(result.runs) != 1 else ''}"
    what = "no run"
    if first is not None:
        accelerators = first.printed.accelerators or "?"
        what = f"{first.setup.workload or 'unknown workload'}, {accelerators} x {first.setup.accelerator or '?'}"
    path = os.path.relpath(result.path, root)
    return f"{path}: {what}, {count}; v{result.edition.name} {result.division.upper()}"


def counted(checked: Checked) -> str:
    """Return how many errors and warnings there are, and of how many rules."""
    return f"{_number(checked, 'error')}, {_number(checked, 'warning')}"


def _number(checked: Checked, severity: str) -> str:
    count = checked.count(severity)
    rules = len({one.finding.rule for one in checked.findings if one.finding.severity == severity})
    text = f"{count} {severity}{'s' if count != 1 else ''}"
    return f"{text} of {rules} rule{'s' if rules != 1 else ''}" if count > 1 else text


def _verdict(checked: Checked) -> Line:
    if checked.valid:
        return f"VALID by the rules that can be checked: {counted(checked)}", {"fg": "green", "bold": True}
    return f"INVALID: {counted(checked)}", _STYLES["error"]


def _write(path: str, content: str) -> None:
    from datagen.errors import SpaceError

    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        raise SpaceError(f"{path} could not be written: {error.strerror}; give a file that you may write") from error
