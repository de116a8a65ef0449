"""What the results of others name is never imported, nor loaded, and what is no file is a finding."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
import yaml

from datagen.errors import DlemuError, UserError
from dlemu.contrib.mlperf.audit.foreign_times import foreign_run
from dlemu.contrib.mlperf.check.judge import check_folder
from dlemu.contrib.mlperf.tests import foreign_runs
from dlemu.contrib.mlperf.tests.checkpoint_leaves import make_result
from dlemu.contrib.mlperf.tests.golden import make_tree
from tests.cli.test_odd_files import KINDS, ended
from tests.results.test_received_names import PLANTED, imported, read_every_way, read_planted

imported = imported


def test_results_of_dlio_and_of_mlperf(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    foreign_runs.write_run(tmp_path / "run", steps=12)
    make_tree(tree, "2.0")
    result = make_result(tmp_path / "checkpoints")

    def read_foreign(number: int | None) -> None:
        with contextlib.suppress(DlemuError):
            foreign_run(str(tmp_path / "run"))
        read_every_way(tmp_path / "run", number)

    counts = [read_planted(file, read_foreign) for file in sorted(tmp_path.glob("run/**/*.yaml"))]
    counts += [read_planted(tmp_path / "run" / "summary.json", read_foreign)]
    for folder in (tree, result):
        for name in ("config.yaml", "*_metadata.json"):
            file = next(iter(sorted(folder.rglob(name))))
            counts.append(read_planted(file, lambda _, folder=folder: check_folder(str(folder))))  # type: ignore[misc]
    assert sum(counts) > 40, counts


def test_a_foreign_run_names_no_file_to_load(tmp_path: Path) -> None:
    evil = tmp_path / "evil.yaml"
    evil.write_text(f"hydra:\n  searchpath: [pkg://{PLANTED}]\n")
    foreign_runs.write_run(tmp_path / "run", steps=12)
    for config in (tmp_path / "run").rglob("config.yaml"):
        tree = yaml.safe_load(config.read_text())
        tree["workload"]["model"] = {"name": str(evil)}
        config.write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match=r"evil.yaml'|lacks"):
        foreign_run(str(tmp_path / "run"))


@pytest.mark.slow
def test_audits_and_checks_name_what_is_no_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """These judge whatever they find: what can't be read is a finding."""
    foreign_runs.write_run(tmp_path / "run", steps=12)
    tree = make_result(tmp_path / "tree")
    config = next(iter(sorted(tree.rglob("config.yaml"))))
    for kind in KINDS:
        for path, command in (
            (tmp_path / "run" / "summary.json", ("audit", str(tmp_path / "run"))),
            (config, ("mlperf", "check", str(tmp_path / "tree"))),
        ):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            kind(path)
            with pytest.MonkeyPatch.context() as patched:
                status, said = ended(command, capfd, patched)
            assert status in (0, 1, 2), (kind, command, said)
            assert "Traceback" not in said
