"""Words of `dlemu pack`."""

from __future__ import annotations

import importlib

import pytest

from datagen.errors import UserError
from datagen.registry import names
from dlemu.contrib.pack.words import PACK_FORMATS, read_words


def test_words_become_settings() -> None:
    settings, workload = read_words(["source=/a", "processes=4", "resize=224x224", "encode=jpeg", "images=100"])
    assert (settings.processes, settings.images, settings.recipe.height, workload) == (4, 100, 224, None)
    settings, workload = read_words(["workload=unet3d", "dataset.data_folder=/d", "processes=2"])
    assert workload is not None
    assert (workload.dataset.data_folder, settings.source) == ("/d", "")


def test_folders_are_quoted_as_in_every_command() -> None:
    settings, _ = read_words(["source='/a, b'", "target='/it\\'s'", "processes='4'"])
    assert (settings.source, settings.target, settings.processes) == ("/a, b", "/it's", 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["source=/a", "proceses=4"], "did you mean processes"),
        (["source=/a", "processes=0"], "processes is 0: wanted 1 or more"),
        (["source=/a", "processes=four"], "wanted a whole number"),
        (["source=/a", "format=tar"], "wanted one of npz, parquet, tfrecord, webdataset"),
        (["source=/a", "format=npz", "resize=224"], "arrays of one shape"),
        (["source=/a", "resize=224", "encode=keep"], "wanted encode=raw, jpeg or png"),
        (["processes=4"], "either source=FOLDER"),
        (["source=/a", "workload=unet3d"], "either source=FOLDER"),
    ],
)
def test_what_nothing_can_be_packed_with(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_words(words)


def test_formats_that_can_be_packed_are_those_with_a_packer() -> None:
    every = names("datagen.formats")
    with_packer = [name for name in every if hasattr(importlib.import_module(f"datagen.formats.{name}"), "Packer")]
    assert list(PACK_FORMATS) == with_packer
