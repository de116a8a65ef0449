"""What is checked before the first trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from datagen.errors import UserError
from dlemu.config.overrides import take_word
from dlemu.config.schema import Workload
from dlemu.studies.prerequisites import check_launcher
from dlemu.studies.size.find_size import size


@pytest.fixture
def recipe(tmp_path: Path) -> list[str]:
    """Words that choose a workload of 20 samples; an accelerator needs 165 batches of two."""
    text = "dataset: {num_files_train: 20}\nreader: {batch_size: 2, read_threads: 1}\ntrain: {computation_time: 0.05}"
    (tmp_path / "job.yaml").write_text(text)
    return [f"workload={tmp_path / 'job.yaml'}", f"dataset.data_folder={tmp_path / 'data'}"]


@pytest.mark.parametrize(("most", "at_least", "suffices_for"), [(4096, None, 8), (4096, 11, 12), (3, None, 3)])
def test_a_dataset_that_is_made_suffices_for_some(
    most: int, at_least: int | None, suffices_for: int, recipe: list[str]
) -> None:
    made: list[int] = []

    def make(workload: Workload) -> None:
        made.append(workload.dataset.num_files_train)
        raise UserError("enough seen")

    with pytest.raises(UserError, match="enough seen"):
        size(recipe, most=most, at_least=at_least, make=make)
    assert made == [suffices_for * 2 * 165]


def test_a_dataset_for_none_says_how_large_it_must_be(recipe: list[str]) -> None:
    with pytest.raises(UserError, match=r"20 samples: wanted at least 330 .*165 steps of 2 .* dataset of 330 files"):
        size([*recipe, "dataset.num_files_train=20"], make=lambda workload: None)


@pytest.mark.parametrize("word", ["train.computation_time=0", "dataset.format=synthetic", "reader.data_loader=none"])
def test_what_every_count_would_pass_is_refused(word: str, recipe: list[str]) -> None:
    with pytest.raises(UserError, match=f"^{word.replace('=', ' is ')}: without .*, every count passes"):
        size([*recipe, word])


def test_the_launcher_is_a_word_of_its_own() -> None:
    assert take_word(["a=1", 'launcher="mpirun -np {ranks}"'], "launcher") == ("mpirun -np {ranks}", ["a=1"])
    assert take_word(["a=1"], "launcher") == ("", ["a=1"])
    with pytest.raises(UserError, match="does not say where the count goes"):
        check_launcher("size", "mpirun -np 4")
    for wrong in ("mpirun 'a -np {ranks}", "mpirun -np {ranks} --host {host}", "mpirun -np {ranks} {}"):
        with pytest.raises(UserError, match="is no command"):
            check_launcher("size", wrong)


def test_under_a_launcher_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(UserError, match="start it once"):
        check_launcher("size", "")
