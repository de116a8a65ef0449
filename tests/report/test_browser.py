"""The page in a real browser: nothing on its console, every figure visible, numbers as in the summary."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlemu.report.page import write_page
from tests.report.folders import write_run, write_size, write_sweep
from tests.report.test_study_pages import write_comparison

for package in ("altair", "vl_convert"):
    pytest.importorskip(package, reason="the extra `report` is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine; on Debian: apt-get install chromium"),
]
DESK: dict[str, Any] = {"viewport": {"width": 1200, "height": 900}}
NIGHT: dict[str, Any] = DESK | {"color_scheme": "dark"}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_page(str(write_run(tmp_path_factory.mktemp("run"), ranks=4, epochs=3, steps=20))))


@pytest.fixture(scope="module")
def pages(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind of result, by the file whose numbers it shows."""
    folder = tmp_path_factory.mktemp("pages")
    sweep, size = write_sweep(folder / "sweep"), write_size(folder / "size")
    both = write_comparison(folder / "both", sweep)
    made = {"size.json": size, "sweep.json": sweep, "compare.json": both}
    return {"summary.json": page} | {name: Path(write_page(str(one))) for name, one in made.items()}


def visit(browser: Any, page: Path, how: dict[str, Any]) -> tuple[Any, list[str]]:
    """Open the page; what goes to the console or the network is noted."""
    noted: list[str] = []
    opened = browser.new_context(**how).new_page()
    opened.on("console", lambda message: noted.append(message.text))
    opened.on("pageerror", lambda error: noted.append(str(error)))
    opened.on("request", lambda request: noted.append(request.url))
    opened.goto(page.as_uri())
    noted.remove(page.as_uri())
    return opened, [one for one in noted if not one.startswith("data:")]


KINDS = {"summary.json": 3, "size.json": 1, "sweep.json": 1, "compare.json": 1}
"""Of each kind of result: its file, and how many figures its page has at least."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [DESK, NIGHT, PHONE], ids=["desk", "night", "phone"])
def test_it_shows_every_figure_and_says_nothing_on_the_console(
    browser: Any, pages: dict[str, Path], how: dict[str, Any], kind: str
) -> None:
    opened, noted = visit(browser, pages[kind], how)
    assert noted == []
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    opened.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true })")
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    figures = opened.locator("figure")
    assert figures.count() >= KINDS[kind]
    for place in range(figures.count()):
        picture = figures.nth(place).locator("svg")
        box = picture.bounding_box()
        assert box["width"] > 500, "as wide as its text needs to be readable: a phone scrolls it"
        assert box["height"] > 100
        drawn = picture.evaluate(
            "picture => [...picture.querySelectorAll('[class^=mark-] path, [class^=mark-] line')]"
            ".filter(mark => { const box = mark.getBBox(); return box.width + box.height > 1 }).length"
        )
        assert drawn > 3


def test_figures_are_neither_blank_nor_hidden_at_night(browser: Any, page: Path) -> None:
    opened, _ = visit(browser, page, NIGHT)
    ink = "text => getComputedStyle(text).fill"
    named = opened.locator("figure .role-axis-title text").first.evaluate(ink)
    assert named == opened.evaluate("getComputedStyle(document.querySelector('.lead')).color")
    day, _ = visit(browser, page, DESK)
    assert day.locator("figure .role-axis-title text").first.evaluate(ink) != named


def test_in_print_all_is_open_but_the_raw_keys(browser: Any, page: Path) -> None:
    opened, _ = visit(browser, page, DESK)
    folded, raw = (opened.locator(f"{which} table").first for which in ("details:not(.raw)", "details.raw"))
    assert not folded.is_visible()
    opened.emulate_media(media="print")
    assert folded.is_visible()
    assert not raw.is_visible()
    assert len(opened.pdf(format="A4")) > 20_000
