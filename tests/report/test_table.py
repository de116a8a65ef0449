"""One table, on the terminal and on a page: the same cells in both, and nobody's text is markup."""

from __future__ import annotations

import io

from rich.console import Console

from dlemu.report.table import Line, Table, columns, html_table, print_table

NASTY = "[bold]<img src=x onerror=alert(1)>[/nothing]"
MADE = Table(
    title="Counts",
    columns=columns("count", "AU, %", "verdict", right=range(2)),
    rows=[("4", "99.60", Line("pass", "good")), ("a heading",), ("9", "88.20", Line("fail", "bad"))],
    notes=["MB is 1e6 bytes", Line("of memory", "caution")],
)


def shown(table: Table, *, width: int = 80, terminal: bool = False) -> str:
    out = io.StringIO()
    print_table(table, Console(file=out, width=width, force_terminal=terminal))
    return out.getvalue()


def test_the_terminal_has_all_cells_in_order_with_notes_below() -> None:
    lines = [line.split() for line in shown(MADE).splitlines() if line.strip(" ─")]
    assert lines[0] == ["Counts"]
    assert lines[1] == ["count", "AU,", "%", "verdict"]
    assert lines[2:] == [
        ["4", "99.60", "pass"],
        ["a", "heading"],
        ["9", "88.20", "fail"],
        ["MB", "is", "1e6", "bytes"],
        ["of", "memory"],
    ]


def test_tones_are_colours_on_a_terminal_and_classes_on_a_page() -> None:
    coloured, page = shown(MADE, terminal=True), html_table(MADE)
    for text, colour, tone in (("pass", "1;32", "good"), ("fail", "1;31", "bad"), ("of memory", "33", "caution")):
        assert f"\x1b[{colour}m{text}" in coloured
        assert f'<span class="{tone}">{text}</span>' in page
    assert "\x1b" not in shown(MADE)


def test_texts_of_others_are_no_markup() -> None:
    table = Table(title=NASTY, columns=columns(NASTY), rows=[(NASTY,)], notes=[NASTY])
    assert shown(table, width=200).count(NASTY) == 4
    page = html_table(table)
    assert "<img" not in page
    assert page.count("&lt;img") == 4


def test_texts_of_others_do_not_control_the_terminal() -> None:
    text = "a\x1b[2J\x1b]0;title\x07\r\x9bb"
    table = Table(title=text, columns=columns(text), rows=[(text,)], notes=[text])
    printed = shown(table, width=200)
    assert printed.count(r"a\x1b[2J\x1b]0;title\x07\x0d\x9bb") == 4
    assert printed.replace("\n", "").isprintable()


def test_a_narrow_terminal_loses_no_column_that_may_not_be_broken() -> None:
    names = [f"a long name {number}" for number in range(5)]
    table = Table(columns=columns(*names, whole=range(5)), rows=[[name.upper() for name in names]])
    for name in names:
        assert name in shown(table, width=30)
        assert name.upper() in shown(table, width=30)
