"""What a document contains, and the commands that answer it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Command = Literal["datagen", "train", "sweep", "pack", "probe"]
LAPTOP_FILES = 1260
"""Of unet3d at laptop scale, in all documents that train it: they share the dataset."""
LAPTOP_SECONDS = 0.0425
"""A V100's time for a batch, divided by 32, where a sample's bytes are divided by 256: it requests 54 MB/s, not 431."""


@dataclass(frozen=True, kw_only=True)
class DocumentQuestion:
    """What is to be reproduced, and where."""

    document: str
    drives: tuple[str, ...]
    """Folders on the storages to compare."""
    scale: Literal["laptop", "full"] = "laptop"
    """`full`: the document's own sizes and times: hours, and terabytes."""
    price: tuple[float, ...] = ()
    """Of each storage, in one currency."""
    watts: tuple[float, ...] = ()
    """Mean power of each storage."""
    overrides: tuple[str, ...] = ()
    """Further settings of every training run, such as reader.read_threads=8."""

    @property
    def laptop(self) -> bool:
        """Return whether sizes are cut for minutes."""
        return self.scale == "laptop"

    def folders(self, name: str) -> list[str]:
        """Return a folder of that name on each drive."""
        return [os.path.join(drive, name) for drive in self.drives]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command. Its results are in a folder of the step's name."""

    name: str
    command: Command
    words: tuple[str, ...]
    says: str
    """For whoever waits."""


def datagen(question: DocumentQuestion, name: str, words: Sequence[str]) -> list[Step]:
    """Return the steps that make a dataset on each drive."""
    return [
        Step(
            name=f"data-{number}",
            command="datagen",
            words=(*words, f"dataset.data_folder={folder}"),
            says=f"dataset in {folder}",
        )
        for number, folder in enumerate(question.folders(name), start=1)
    ]


def scaled(question: DocumentQuestion, *words: str) -> tuple[str, ...]:
    """Return words of a workload at the requested scale."""
    return (*words, "scale=laptop") if question.laptop else words
