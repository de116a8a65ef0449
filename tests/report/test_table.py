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
