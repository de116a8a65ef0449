"""The page: complete, self-contained, true to the summary, and safe with the texts of others."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from dlemu.jobs.training.result import Run, read_run
from dlemu.jobs.training.wording import screen
from dlemu.metrics.findings import Code, Finding, Severity
from dlemu.metrics.rates import Mean
from dlemu.report.figure_base import VARIABLES
from dlemu.report.page import Page, render, write_page
from dlemu.report.units import explained
from tests.report.folders import hand_made_run, with_summary, write_run
from tests.runs import present
from tests.shown import details

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
MOST_BYTES = 1_500_000
NASTY = "<img src=x onerror=alert(1)>{{ 7 * 7 }}</pre><script>alert(2)</script>"


class _Read(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data.replace("\N{NO-BREAK SPACE}", " "))


def read_page(page: Path) -> _Read:
    return _Read(page.read_text())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_page(str(write_run(tmp_path_factory.mktemp("run"), ranks=4, epochs=3, steps=20))))


def html(run: Run, config: str = "") -> str:
    return render(Page(screen=screen(run.summary, ""), config=config, source=run.folder))


def _not_read(would_help: str, severity: Severity = "loud") -> Finding:
    shares = {"from_storage_percent": 0, "least_percent": 0, "most_percent": 0}
    return Finding.of(Code.PAGE_CACHE, severity, would_help=would_help, **shares)


def from_memory(finding: Finding, served: float | None = 0.0, **changes: Any) -> Run:
    run = hand_made_run()
    page_cache = present(run.summary.page_cache)
    share = replace(page_cache.from_storage_percent, mean=served)
    cache = replace(page_cache, served_percent=served, from_storage_percent=share)
    rate = replace(present(run.summary.metrics.app_mb_per_second), mean=207.0)
    metrics = replace(run.summary.metrics, app_mb_per_second=rate)
    return with_summary(run, page_cache=cache, findings=(finding,), limited_by=None, metrics=metrics, **changes)


def printed(run: Run) -> str:
    return details("training", run.summary, terminal=True)


@pytest.mark.parametrize(("outcome", "state"), [("no verdict", "open"), ("fail", "failed")])
def test_memory_is_warned_of_beside_any_verdict_but_a_pass(outcome: str, state: str) -> None:
    run = from_memory(_not_read("reader.odirect=true"), outcome=outcome, verdict="AU", verdict_code="host_limited")
    text, said = html(run), printed(run)
    assert re.findall(r'<header class="(\w+)">', text) == [state]
    assert {"open": "\x1b[1;33m", "failed": "\x1b[1;31m"}[state] in said
    assert all("MEASURED MEMORY, NOT STORAGE" in shown for shown in (text, said))


def test_a_verdict_on_memory_says_so_once_with_the_command_that_reads_the_storage() -> None:
    found = _not_read("reader.odirect=true or reader.evict_page_cache=epochs")
    verdict = "NO VERDICT: only 0 % of the bytes came from storage"
    said = screen(from_memory(found, outcome="no verdict", verdict=verdict).summary, "results/x").shown_lines()
    assert sum("storage" in line.value.lower() or "memory" in line.value.lower() for line in said) == 1
    command = "dlemu train workload=results/x/config.yaml reader.evict_page_cache=epochs output.folder=results/x-again"
    assert [line.value for line in said if line.label == "again"] == [command]
    undecided = {"outcome": "undecided", "verdict_code": "undecided", "verdict": "UNDECIDED: AU 87 % +- 12: run longer"}
    assert screen(with_summary(hand_made_run(), **undecided).summary, "").lines[0].value == "AU 87 % ± 12: run longer"


@pytest.mark.parametrize(
    ("ranks", "served", "finding", "share"),
    [
        (18, 0.0, _not_read("reader.odirect=true"), "all of it from memory: this is no result of your drive"),
        (1, 30.0, _not_read("reader.odirect=true"), "70 % of it from memory: this is no result of your drive"),
        (4, 80.0, _not_read("a larger dataset", "caution"), "20 % of it from memory: this is no result"),
        (2, None, Finding.of(Code.NO_DATA_FROM_STORAGE, "loud", file_system="tmpfs"), "drive with a dataset on it"),
    ],
)
def test_a_pass_from_memory_is_no_pass_of_the_storage(
    ranks: int, served: float | None, finding: Finding, share: str
) -> None:
    run = from_memory(finding, served, outcome="pass", verdict="PASS: AU", ranks=ranks)
    text, said = html(run), printed(run)
    assert re.findall(r'<header class="(\w+)">', text) == ["neutral"]
    busy = f"all {ranks} accelerators were busy. They" if ranks > 1 else "its accelerator was busy. It"
    for shown in (" ".join(" ".join(_Read(text).words).split()), " ".join(said.split())):
        assert share in shown
        assert f"dlemu works here: {busy} read 207.0 MB/s, " in shown
        assert re.search(r"Next: measure the drive with .* \(metric\.cached=true ", shown)
        assert "MEASURED" not in shown
    assert "PASS" not in said
    assert run.summary.verdict == "PASS: AU", "the file says what was judged, as metric.cached=true asks"


def test_it_is_one_small_file_that_loads_nothing(page: Path) -> None:
    text = page.read_text()
    assert page.stat().st_size < MOST_BYTES
    read = _Read(text)
    assert {"script", "iframe", "object", "img"} & {tag for tag, _ in read.tags} == set()
    links = [
        str(value) for _, attrs in read.tags for name, value in attrs.items() if name in ("src", "href", "xlink:href")
    ]
    assert [link for link in links if not link.startswith(("data:", "#"))] == []
    assert "@import" not in text
    assert [url for url in re.findall(r"url\(([^)]*)\)", text) if not url.startswith("#")] == []


def test_it_begins_with_what_the_terminal_says_first(page: Path) -> None:
    folder, summary = str(page.parent), read_run(str(page.parent)).summary
    words, first = {word.strip() for word in _Read(page.read_text()).words}, screen(summary, folder)
    assert {line.label for line in first.lines} >= {"delivers", "limit", "proof"}
    for line in first.lines:
        assert {line.label, line.value} <= words, line
    assert len(first.shown_lines()) <= 9, "a title and at most nine lines"
    for au in (0.0, 87.0):  # nothing to divide by, and almost enough
        other = replace(summary, metrics=replace(summary.metrics, au_sustained_percent=Mean(mean=au)))
        assert all("times as much" not in line.value for line in screen(other, folder).lines)


def test_ids_of_one_figure_are_not_another_s(page: Path) -> None:
    text = page.read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_all_that_a_result_consists_of_stands_there(page: Path) -> None:
    text = " ".join(_Read(page.read_text()).words)
    for word in ("one of the fast ones", "6.1", "ext4", "/dev/vda", "data/handmade", "name: handmade"):
        assert word in text
    for section in ("Metrics", "Each epoch", "summary.json: environment", "environment.hosts", "telemetry.devices"):
        assert section in text
    for key, value, _ in explained(read_run(str(page.parent)).summary):
        assert value in (None, ()) or key.rpartition(".")[2] in text, "every key that has a value"


def test_texts_of_others_are_escaped() -> None:
    run = hand_made_run()
    run = with_summary(run, workload=NASTY, verdict=f"FAIL: {NASTY}", issues=(NASTY,), data_folder=NASTY)
    read = _Read(html(run, f"name: {NASTY}\n"))
    assert {"script", "img"} & {tag for tag, _ in read.tags} == set()
    assert sum(NASTY in words for words in read.words) >= 4


def test_a_run_without_telemetry_makes_a_page_where_it_is_asked_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path, telemetry=False)
    text = Path(write_page(str(folder), str(tmp_path / "elsewhere.html"))).read_text()
    assert 'id="step_split"' in text
    assert 'id="latency"' not in text


def test_texts_are_readable_by_day_and_at_night() -> None:
    """Contrast of each colour of texts with each ground is at least 4.5 (WCAG 2.2, AA), and figures have the same."""
    css = files("dlemu.report").joinpath("page.css").read_text()
    day, night = (dict(re.findall(r"--(\w+): (#\w{6});", part)) for part in css.split("prefers-color-scheme: dark")[:2])
    assert {name: colour for colour, name in VARIABLES.items()}.items() <= day.items()
    for colours in (day, night):
        grounds = [_light(colours.pop(name)) for name in ("paper", "box")]
        del colours["line"]
        for name, colour in colours.items():
            ratios = [(max(_light(colour), ground) + 0.05) / (min(_light(colour), ground) + 0.05) for ground in grounds]
            assert min(ratios) >= 4.5, name


def _light(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_an_edited_summary_is_computed_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path, telemetry=False)
    measured, path = read_page(Path(write_page(str(folder)))).words, folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"verdict": "PASS: forged", "outcome": "pass"}))
    assert read_page(Path(write_page(str(folder)))).words == measured
