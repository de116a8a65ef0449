"""One table, on the terminal and on a page: the same cells in both, and nobody's text is markup."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from dlemu.report.table import Table, columns, html_table, print_table
from dlemu.report.units import with_uncertainty

NASTY = "[bold]<img src=x onerror=alert(1)>[/nothing]"


def shown(table: Table) -> str:
    out = io.StringIO()
    print_table(table, Console(file=out, width=200))
    return out.getvalue()


def test_texts_of_others_are_no_markup() -> None:
    table = Table(title=NASTY, columns=columns(NASTY), rows=[(NASTY,)], notes=[NASTY])
    assert shown(table).count(NASTY) == 4
    page = html_table(table)
    assert "<img" not in page
    assert page.count("&lt;img") == 4


def test_texts_of_others_do_not_control_the_terminal() -> None:
    text = "a\x1b[2J\x1b]0;title\x07\r\x9bb"
    table = Table(title=text, columns=columns(text), rows=[(text,)], notes=[text])
    printed = shown(table)
    assert printed.count(r"a\x1b[2J\x1b]0;title\x07\x0d\x9bb") == 4
    assert printed.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("percent", "half_width", "shown"),
    [
        (97.31, 0.42, "97.3 % ± 0.4"),
        (93.2, 2.1, "93 % ± 2"),
        (99.996, 0.0, "100 %"),
        (100.0, math.inf, "100 %"),
        (89.97, 0.01, "89.97 %"),
        (89.8, 1.2, "89.8 % ± 1.2"),
        (90.0, 0.01, "90 %"),
    ],
)
def test_a_percentage_has_the_digits_of_its_interval_and_never_looks_like_a_threshold_that_it_misses(
    percent: float, half_width: float, shown: str
) -> None:
    assert with_uncertainty(percent, half_width, 90.0) == shown
