"""The page: complete, self-contained, true to the summary, and safe with the texts of others."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dlemu.report.pages import write_page
from tests.report.folders import write_run

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
MOST_BYTES = 1_500_000
NASTY = "<img src=x onerror=alert(1)>{{ 7 * 7 }}</pre><script>alert(2)</script>"


class _Read(HTMLParser):
    """Tags, the `data` elements and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def numbers(self) -> list[tuple[str, str]]:
        found = [(attrs["data-key"], attrs["value"]) for tag, attrs in self.tags if tag == "data"]
        return [(key, value) for key, value in found if key and value]


def read_page(page: Path) -> _Read:
    return _Read(page.read_text())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_page([str(write_run(tmp_path_factory.mktemp("run"), ranks=4, epochs=3, steps=20))]))


def test_a_page_cache_that_served_the_bytes_stands_beside_the_verdict(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    summary["page_cache"]["warning"] = "STORAGE WAS NOT READ: the page cache served 100 % of the bytes"
    (run / "summary.json").write_text(json.dumps(summary))
    text = Path(write_page([str(run)])).read_text()
    assert summary["page_cache"]["warning"] in text[: text.index('class="tiles"')]


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


def test_every_number_that_stands_out_is_the_summarys(page: Path) -> None:
    summary = json.loads((page.parent / "summary.json").read_text())
    numbers = _Read(page.read_text()).numbers
    assert len(numbers) >= 8
    for key, value in numbers:
        found: Any = summary
        for part in key.split("."):
            found = found[part]
        assert float(value) == found


def test_ids_of_one_figure_are_not_another_s(page: Path) -> None:
    text = page.read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_all_that_a_result_consists_of_stands_there(page: Path) -> None:
    text = " ".join(_Read(page.read_text()).words)
    for word in ("one of the fast ones", "6.1", "ext4", "/dev/vda", "data/handmade", "workload: handmade"):
        assert word in text
    for section in ("Result", "Epochs", "How it was measured", "Host node0", "Every metric of summary.json"):
        assert section in text


def test_verdict_evidence_and_advice_stand_there_in_words(tmp_path: Path) -> None:
    limited = {
        "what": "storage",
        "confidence": "high",
        "evidence": ["the device was busy"],
        "advice": ["a faster drive"],
    }
    changes = {"limited_by": limited, "loss_percent": {"first_step": 1.5, "reading": 10.25}}
    text = " ".join(_Read(Path(write_page([str(write_run(tmp_path, changes=changes))])).read_text()).words)
    for words in ("Limited by: storage", "the device was busy", "What would help", "a faster drive", "10.25 %"):
        assert words in text


def test_texts_of_others_are_escaped(tmp_path: Path) -> None:
    changes = {"workload": NASTY, "verdict": f"FAIL: {NASTY}", "issues": [NASTY], "hosts": ["node0"]}
    folder = write_run(tmp_path, changes=changes | {"dataset": _dataset(NASTY)})
    (folder / "config.yaml").write_text(f"name: {NASTY}\n")
    read = _Read(Path(write_page([str(folder)])).read_text())
    assert {"script", "img"} & {tag for tag, _ in read.tags} == set()
    assert sum(NASTY in words for words in read.words) >= 4


def test_an_incomplete_run_says_so_first(tmp_path: Path) -> None:
    changes = {"complete": False, "failure": "rank 3 died", "passed": None}
    text = Path(write_page([str(write_run(tmp_path, changes=changes))])).read_text()
    assert 'class="verdict open"' in text
    assert "INCOMPLETE</strong>: rank 3 died" in text


def test_a_summary_alone_makes_a_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path, telemetry=False)
    (folder / "steps.parquet").unlink()
    (folder / "config.yaml").unlink()
    text = Path(write_page([str(folder)], str(tmp_path / "elsewhere.html"))).read_text()
    assert 'id="au"' in text
    assert 'id="throughput"' not in text


def _dataset(folder: str) -> dict[str, Any]:
    counts = {"num_files_train": 1, "num_samples_per_file": 1, "total_bytes": 5}
    return {"data_folder": folder, "format": "npz"} | counts
