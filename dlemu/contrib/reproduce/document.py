"""Documents of vendors, each a YAML file in `documents`: what is run, and the tables and figures of the results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import msgspec
import yaml

from dlemu.config.overrides import override
from dlemu.extend import UserError

FOLDER = os.path.join(os.path.dirname(__file__), "documents")
Command = Literal["datagen", "sweep", "probe"]


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


@dataclass(frozen=True, kw_only=True)
class Step:
    """A dlemu command. A probe or datagen is run on each drive; a sweep trains on, or packs, the data of all drives."""

    name: str
    command: Command
    says: str  # what it does, for the progress line
    words: tuple[str, ...]
    laptop: tuple[str, ...] = ()  # further words at scale=laptop
    full: tuple[str, ...] = ()  # further words at scale=full


@dataclass(frozen=True, kw_only=True)
class DeclaredTable:
    """A table of results, with its figure."""

    title: str
    of: str  # beginning of the names of the steps whose results it shows
    across: dict[str, str] = field(default_factory=dict)  # title of what varies -> its name in a row (`rows_of`)
    values: dict[str, str] = field(default_factory=dict)  # quantity with its unit -> its name in a row
    by: str = ""  # name in a row: the table has all quantities once for each of its values
    shape: Literal["bars", "lines", "over time", "time saved"] = "bars"
    figure: str = ""
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document of a vendor."""

    title: str
    steps: tuple[Step, ...]  # the first may make a dataset, which each drive gets in a folder named after its workload
    tables: tuple[DeclaredTable, ...]

    def plan(self, question: DocumentQuestion) -> Iterator[Step]:
        """Yield the commands to run, with all their words: a probe or datagen for each drive, as NAME-1, NAME-2, ..."""
        datagen_words: tuple[str, ...] = ()
        folders = list[str]()  # of the dataset on each drive
        for step in self.steps:
            scaled = (*step.words, *(step.laptop if question.scale == "laptop" else step.full))
            if step.command == "sweep":
                words = (*datagen_words, *scaled, *question.overrides, f"drives={','.join(folders)}")
                yield Step(name=step.name, command="sweep", says=step.says, words=words)
                continue
            for number, drive in enumerate(question.drives, start=1):
                words = (drive, *scaled)
                if step.command == "datagen":
                    datagen_words = scaled
                    folders.append(os.path.join(drive, scaled[0].partition("=")[2]))  # resnet50 of workload=resnet50
                    words = (*scaled, override(("dataset", "data_folder"), folders[-1]))
                says = step.says.format(drive=drive)
                yield Step(name=f"{step.name}-{number}", command=step.command, says=says, words=words)


def document_names() -> list[str]:
    return sorted(name.removesuffix(".yaml") for name in os.listdir(FOLDER) if name.endswith(".yaml"))


@cache
def document_named(name: str) -> Document:
    """Return a document; raises UserError for an unknown one."""
    if name not in document_names():
        raise UserError(f"there is no document {name!r}: wanted one of {', '.join(document_names())}")
    with open(os.path.join(FOLDER, f"{name}.yaml"), encoding="utf-8") as file:
        return msgspec.convert(yaml.safe_load(file), Document)
