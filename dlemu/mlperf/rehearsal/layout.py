"""Puts a finished run into the edition's tree: DLIO's files where the edition's tool leaves them."""

from __future__ import annotations

import os
import shutil
from typing import Any

import yaml

from datagen.atomic import write_text
from datagen.errors import SpaceError
from dlemu.mlperf.check.files import CONFIG_FOLDER
from dlemu.mlperf.dlio_config import dlio_hydra
from dlemu.mlperf.rehearsal.papers import file_separation, run_metadata, write_json
from dlemu.mlperf.rehearsal.plan import Plan
from dlemu.mlperf.rehearsal.sequence import Attempt
from dlemu.sizing.process import LOG

_SEED = "++workload.train.seed="
"""The sequence sets it, as the rules ask; it is no override of the submitter's. config.yaml has it."""


def lay_out(plan: Plan, attempt: Attempt) -> str:
    """Put a run into the tree and return its folder there, which gets its name when it is whole; raises SpaceError."""
    leaf = plan.leaf(attempt.label, attempt.stamp)
    part = os.path.join(os.path.dirname(leaf), f".{os.path.basename(leaf)}.part")
    os.makedirs(part, exist_ok=True)
    run = os.path.join(plan.folder, attempt.folder)
    try:
        _dlio_files(plan, os.path.join(run, "dlio"), part)
        overrides = _config(plan, os.path.join(run, "dlio", CONFIG_FOLDER), part, leaf)
        if plan.edition.name != "1.0":
            _mlpstorage_files(plan, attempt, overrides, os.path.join(run, LOG), part)
        os.rename(part, leaf)
    except OSError as error:
        raise SpaceError(f"{leaf} could not be written: {error.strerror}; free some space, and go on") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return leaf


def _dlio_files(plan: Plan, source: str, target: str) -> None:
    for name in sorted(os.listdir(source)):
        if os.path.isfile(os.path.join(source, name)):
            shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
    if plan.edition.name == "1.0":  # its DLIO kept rank 0's alone
        shutil.copyfile(os.path.join(source, "0_per_epoch_stats.json"), os.path.join(target, "per_epoch_stats.json"))


def _config(plan: Plan, source: str, target: str, leaf: str) -> list[str]:
    """Copy hydra's files and return the overrides, without what the sequence itself set."""
    name = "configs" if plan.edition.name == "1.0" else CONFIG_FOLDER
    folder = os.path.join(target, name)
    with open(os.path.join(source, "overrides.yaml")) as lines:
        overrides = [word for word in yaml.safe_load(lines) if not word.startswith(_SEED)]
    with open(os.path.join(source, "config.yaml")) as lines:
        write_text(folder, "config.yaml", lines.read())
    write_text(folder, "overrides.yaml", _yaml(overrides))
    write_text(folder, "hydra.yaml", _yaml(dlio_hydra(leaf, name, overrides)))
    return overrides


def _mlpstorage_files(plan: Plan, attempt: Attempt, overrides: list[str], console: str, target: str) -> None:
    shutil.copyfile(console, os.path.join(target, "training_run.stdout.log"))
    write_text(target, "training_run.stderr.log", "both streams are in training_run.stdout.log\n")
    metadata = run_metadata(plan, attempt, overrides)
    write_json(target, f"training_{attempt.stamp}_metadata.json", metadata)
    if plan.edition.checks_tree:
        write_json(target, "fs_separation.json", file_separation(plan))


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False)
