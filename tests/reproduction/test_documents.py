"""Every document's steps are commands that dlemu takes, at both scales; and what is asked wrongly is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from datagen.errors import UserError
from datagen.registry import find
from dlemu.cli.probe import command as probe_command
from dlemu.config import load
from dlemu.config.points import check_points, points
from dlemu.packing.pack_settings import read_words
from dlemu.reproduction.run_steps import document_names, reproduce
from dlemu.reproduction.steps import DocumentQuestion, Step


def asked(document: str, **settings: object) -> DocumentQuestion:
    return DocumentQuestion(document=document, drives=("/mnt/a", "/mnt/b"), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", ["laptop", "full"])
@pytest.mark.parametrize("document", document_names())
def test_steps_are_commands(document: str, scale: str) -> None:
    module = document.replace("-", "_")
    question = asked(document, scale=scale, overrides=("reader.read_threads=2",))
    steps: list[Step] = find("dlemu.reproduction.documents", module, "steps")(question)
    assert len({step.name for step in steps}) == len(steps)
    overridden = []
    for step in steps:
        if step.command == "probe":
            assert probe_command.make_context("probe", list(step.words)).params["preset"] == document
            continue
        runs = points(step.words)
        if step.command == "pack":
            assert all(read_words(run.words)[0].recipe.rescales for run in runs)
            continue
        workloads = [load(run.words) for run in (runs[0], runs[-1])]
        if step.command == "sweep":
            check_points(runs)
        else:
            assert len(runs) == 1
        if step.command != "datagen":
            overridden += [workload.reader.read_threads for workload in workloads]
        folders = {workload.dataset.data_folder.rpartition("/")[0] for workload in workloads}
        assert folders <= {"/mnt/a", "/mnt/b"}
    assert set(overridden) <= {2}


def test_data_that_documents_share_is_the_same_data() -> None:
    made: dict[str, set[tuple[str, ...]]] = {}
    for document in document_names():
        steps: list[Step] = find("dlemu.reproduction.documents", document.replace("-", "_"), "steps")(asked(document))
        for step in steps:
            if step.command == "datagen":
                made.setdefault(step.words[-1], set()).add(step.words)
    assert {len(words) for words in made.values()} == {1}


def test_what_is_asked_wrongly(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'kioxa': did you mean kioxia\?"):
        reproduce(asked("kioxa"))
    with pytest.raises(UserError, match="/mnt/a is no folder that can be written"):
        reproduce(asked("kioxia"))
    question = DocumentQuestion(document="amax", drives=(str(tmp_path),), price=(1.0, 2.0))
    with pytest.raises(UserError, match="a number above 0 for each of the 1 drives"):
        reproduce(question)
