"""What users keep of searches, sweeps and comparisons is read again, whatever version wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.results.answer_files import read_answer, save_answer
from dlemu.studies.answers import SIZE, SWEEP, SizeAnswer, SweepAnswer

COUNT = {
    "accelerators": 2,
    "au_sustained_percent": 95,
    "half_width_percent": 1.5,
    "settled": True,
    "passed": True,
    "trials": 2,
}
SIZED: dict[str, Any] = {
    "schema_version": 1,
    "complete": True,
    "question": {"workload": "unet3d", "accelerator": "h100", "settings_digest": ""},
    "threshold_percent": 90.0,
    "max_accelerators": 2,
    "limited_by": {"what": "count", "evidence": ["--most 2"]},
    "edge": {"pass": COUNT, "fail": None},
    "for_one_more": {"accelerators": 3, "wanted_mb_per_second": 270.0, "most_delivered_mb_per_second": None},
    "probe_mb_per_second": 300.0,
    "counts": [COUNT],
    "trials": [],
    "seconds": 20.0,
    "naive_seconds": 200.0,
}
"""As the first version wrote it, but for the trials."""


def write(folder: Path, answer: Any, name: str = SIZE) -> str:
    (folder / name).write_text(answer if isinstance(answer, str) else json.dumps(answer))
    return str(folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    answer = read_answer(write(tmp_path, SIZED), SIZE, SizeAnswer)
    assert answer is not None
    assert answer.edge.passing == answer.counts[0]
    assert answer.host_only is None
    save_answer(str(tmp_path), SIZE, answer)
    assert read_answer(str(tmp_path), SIZE, SizeAnswer) == answer
    written = json.loads((tmp_path / SIZE).read_text())
    assert {key: written[key] for key in SIZED if key != "question"} | {"question": SIZED["question"]} == SIZED


def test_a_key_of_another_version_does_no_harm(tmp_path: Path) -> None:
    answer = read_answer(write(tmp_path, SIZED | {"mood": "good"}), SIZE, SizeAnswer)
    assert answer is not None
    assert answer.max_accelerators == 2


def test_a_file_that_is_not_there_is_no_answer(tmp_path: Path) -> None:
    assert read_answer(str(tmp_path), SWEEP, SweepAnswer) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "no schema_version"),
        ({"complete": True}, "no schema_version"),
        (SIZED | {"schema_version": 7}, "schema_version 7, wanted 1"),
        (SIZED | {"counts": 3}, r"damaged .*\$\.counts"),
        ({key: value for key, value in SIZED.items() if key != "edge"}, "damaged .*edge"),
    ],
)
def test_a_damaged_file_is_told_with_its_path(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(UserError, match=rf"size\.json.* {said}|size\.json has {said}"):
        read_answer(write(tmp_path, content), SIZE, SizeAnswer)
