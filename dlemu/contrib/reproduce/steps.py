"""What the user asks of a vendor document, and the steps (dlemu commands) that reproduce it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dlemu.config.literal import override

Command = Literal["datagen", "train", "sweep", "pack", "probe"]
_LAPTOP_FILES = 1260
"""Files of unet3d at laptop scale."""
LAPTOP_SECONDS = 0.0425
"""Computation time of a batch: a V100's / 32, with a sample's bytes / 256: an accelerator needs 54 MB/s, not 431."""


@dataclass(frozen=True, kw_only=True)
class DocumentQuestion:
    """Which document to reproduce, and where."""

    document: str
    drives: tuple[str, ...]
    """Folders on the storages to compare."""
    scale: Literal["laptop", "full"] = "laptop"
    """`full`: the document's own sizes and times, which take hours and terabytes."""
    price: tuple[float, ...] = ()
    """Price of each storage, all in one currency."""
    watts: tuple[float, ...] = ()
    """Mean power of each storage, W."""
    overrides: tuple[str, ...] = ()
    """Further settings of every training run, such as reader.read_threads=8."""
    settings_digest: str = ""
    """Of all settings, those in the workload's file included."""

    @property
    def laptop(self) -> bool:
        """Whether sizes are reduced so that it takes minutes."""
        return self.scale == "laptop"

    def folders(self, name: str) -> list[str]:
        """Return the path of folder `name` on each drive."""
        return [os.path.join(drive, name) for drive in self.drives]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One dlemu command."""

    name: str
    command: Command
    words: tuple[str, ...]
    says: str
    """What it does, for the progress line."""


def datagen(question: DocumentQuestion, name: str, words: Sequence[str]) -> list[Step]:
    """Return the steps that make a dataset on each drive."""
    return [
        Step(
            name=f"data-{number}",
            command="datagen",
            words=(*words, override(("dataset", "data_folder"), folder)),
            says=f"dataset in {folder}",
        )
        for number, folder in enumerate(question.folders(name), start=1)
    ]


def scaled(question: DocumentQuestion, *words: str) -> tuple[str, ...]:
    """Return overrides of a workload with the requested scale added."""
    return (*words, "scale=laptop") if question.laptop else words


def unet3d(question: DocumentQuestion) -> tuple[str, ...]:
    """Return the overrides of unet3d's dataset, the same in all documents that train it: they share it."""
    return scaled(question, "workload=unet3d", f"dataset.num_files_train={_LAPTOP_FILES if question.laptop else 24000}")


def probes(question: DocumentQuestion, preset: str, *, laptop: tuple[int, str], full: tuple[int, str]) -> list[Step]:
    """Return a probe of each drive; `laptop` and `full`: seconds of a cell and size of its file."""
    seconds, file_size = laptop if question.laptop else full
    words = ("--preset", preset, "--seconds", str(seconds), "--file-size", file_size)
    return [
        Step(name=f"probe-{number}", command="probe", words=(drive, *words), says=f"random reads of {drive}")
        for number, drive in enumerate(question.drives, start=1)
    ]
