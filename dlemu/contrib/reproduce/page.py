"""A reproduced vendor document on the terminal and on its page."""

from __future__ import annotations

import os
import shlex

from rich.console import Console

from datagen.registry import find
from dlemu.contrib.reproduce.opened import OpenedDocument
from dlemu.contrib.reproduce.run import DOCUMENTS, REPRODUCED, Reproduced, module_of
from dlemu.extend import UserError
from dlemu.report.page import Opened, Page, Words
from dlemu.report.table import Cell, Table, print_lines, print_table
from dlemu.results.answer_files import read_answer
from dlemu.results.kinds import kind_of, kind_of_command

_CUT = (
    "scale=laptop: datasets and times are reduced so that this takes minutes. The figures show the shape of the "
    "document's figures on this storage, not their numbers; scale=full uses the document's sizes."
)


def open_document(folder: str) -> OpenedDocument:
    """Read a reproduced document and the results of its steps; raises UserError."""
    answer = read_answer(folder, REPRODUCED, Reproduced)
    if answer is None:
        raise UserError(f"{folder} has no {REPRODUCED}: name a folder that `dlemu reproduce` wrote")
    results = {
        step.name: kind_of_command(step.command).part("read")(place)
        for step in answer.steps
        if step.command != "datagen" and kind_of(place := os.path.join(folder, step.folder)) is not None
    }
    return OpenedDocument(folder, answer, results)


def print_document(answer: Reproduced, folder: str, console: Console) -> None:
    """Print the tables of a reproduced document."""
    opened = open_document(folder)
    for table in _tables(opened):
        print_table(table, console)
    cut: list[Cell] = [_CUT] if answer.question.laptop else []
    print_lines([*opened.gaps, *cut, f"results: {folder}"], console)


def document_page(opened: OpenedDocument) -> Page:
    """Return the page of a reproduced document, without its figures."""
    answer = opened.answer
    commands = [shlex.join(["dlemu", step.command, *step.words]) for step in answer.steps]
    is_whole = answer.complete and not opened.gaps
    verdict = "REPRODUCED" if is_whole else "INCOMPLETE"
    drives = ", ".join(f"{name}: {path}" for name, path in zip(opened.drives, answer.question.drives, strict=True))
    return Page(
        title=answer.title,
        lead=f"{answer.about} Here: {drives}.",
        state="passed" if is_whole else "open",
        verdict=(verdict, f" on {len(opened.drives)} storage{'s' * (len(opened.drives) != 1)}"),
        words=[Words("How", commands)],
        tables=_tables(opened),
        source=os.path.join(opened.folder, REPRODUCED),
        warning=" ".join([*(f"{gap}." for gap in opened.gaps), *([_CUT] if answer.question.laptop else [])]),
    )


def _tables(opened: OpenedDocument) -> list[Table]:
    tables: list[Table] = list(find(DOCUMENTS, module_of(opened.document), "tables")(opened))
    return tables


def open_page(folder: str) -> Opened:
    """Return the document in a folder with its page; raises UserError."""
    document = open_document(folder)
    return Opened(document, document_page(document), f"{DOCUMENTS}.{module_of(document.document)}")
