"""Vendors' documents, each a YAML file in `documents`: the commands to run, and the tables to make of their results."""

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
    """A dlemu command: a probe or datagen runs once for each drive, a sweep runs once, with the data on all drives."""

    name: str
    command: Command
    says: str  # description for the progress line, with {drive} as placeholder
    words: tuple[str, ...]  # options and overrides
    laptop: tuple[str, ...] = ()  # further words at scale=laptop
    full: tuple[str, ...] = ()  # further words at scale=full


@dataclass(frozen=True, kw_only=True)
class DeclaredTable:
    """A table of results, with its figure."""

    title: str
    of: str  # prefix of the names of the steps whose results the table shows
    across: dict[str, str] = field(default_factory=dict)  # title of the varied setting -> its key in a row (`rows_of`)
    values: dict[str, str] = field(default_factory=dict)  # quantity with its unit -> its key in a row
    by: str = ""  # key in a row; the table repeats all quantities for each of its values
    shape: Literal["bars", "lines", "over time", "time saved"] = "bars"
    figure: str = ""
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A vendor's document: the steps to run, and the tables of their results."""

    title: str
    steps: tuple[Step, ...]  # the first may make a dataset on each drive, in a folder named after the workload
    tables: tuple[DeclaredTable, ...]

    def plan(self, question: DocumentQuestion) -> Iterator[Step]:
        """Yield the commands to run, with all words. One that runs for each drive is named NAME-1, NAME-2, ..."""
        datagen_words: tuple[str, ...] = ()
        datasets = list[str]()  # the folder of the dataset on each drive
        for step in self.steps:
            step_words = (*step.words, *(step.laptop if question.scale == "laptop" else step.full))
            if step.command == "sweep":
                words = (*datagen_words, *step_words, *question.overrides, f"drives={','.join(datasets)}")
                yield Step(name=step.name, command="sweep", says=step.says, words=words)
                continue
            for number, drive in enumerate(question.drives, start=1):
                words = (drive, *step_words)
                if step.command == "datagen":
                    datagen_words = step_words
                    datasets.append(os.path.join(drive, step_words[0].partition("=")[2]))  # NAME of workload=NAME
                    words = (*step_words, override(("dataset", "data_folder"), datasets[-1]))
                says = step.says.format(drive=drive)
                yield Step(name=f"{step.name}-{number}", command=step.command, says=says, words=words)


def document_names() -> list[str]:
    return sorted(name.removesuffix(".yaml") for name in os.listdir(FOLDER) if name.endswith(".yaml"))


@cache
def document_named(name: str) -> Document:
    """Return a document by its name; raises UserError for an unknown name."""
    if name not in document_names():
        raise UserError(f"there is no document {name!r}: wanted one of {', '.join(document_names())}")
    with open(os.path.join(FOLDER, f"{name}.yaml"), encoding="utf-8") as file:
        return msgspec.convert(yaml.safe_load(file), Document)
