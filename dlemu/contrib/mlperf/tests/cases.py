"""What this part adds to the tests that walk all commands, results and crews (`tests.parts`)."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path
from typing import Any

from dlemu.contrib.mlperf.audit.audited_run import audit_run, shipped_accelerator_settings
from dlemu.contrib.mlperf.check.judge import check_folder
from dlemu.contrib.mlperf.check.submission_tree import REHEARSAL
from dlemu.contrib.mlperf.tests.test_mlperf_run import words
from tests.e2e.harness import DLEMU, dlemu

HERE = Path(__file__).parent
REHEARSE = ("mlperf", "run", "workload=unet3d", "accelerator=b200", "dataset.data_folder=data")


def audit(folder: str) -> None:
    assert "audit.failed" not in {finding.rule for finding in audit_run(folder, _shipped()).findings}


@cache
def _shipped() -> Any:
    return shipped_accelerator_settings()


def rehearsal(sources: Path, results: Path) -> list[str]:
    """Make a dataset; return a rehearsal of six short runs on it."""
    own = [word for word in words(results) if str(results) not in word]
    data = f"dataset.data_folder={results}-made"
    settings = [word for word in own if "=" in word]
    dlemu("datagen", *settings, data, cwd=results.parent)  # refused where a fault lies in its place
    return [DLEMU, *own, data, f"output.folder={results}"]


# Foreign files and users' files
READERS = {"audit": audit}
FILES = {"a rehearsal": (f"new/{REHEARSAL}", (*REHEARSE, "output.folder=new"))}
FOLDERS = {"results of a rehearsal": ("place", (*REHEARSE, "output.folder=place"))}
FILES_WRITTEN = {
    "an audit's lines": ("audit", "run", "--csv", "place"),
    "a check's lines": ("mlperf", "check", "run", "--csv", "place"),
}
PLACE_OPTIONS = {
    "audit --csv": lambda run, folder: ["audit", str(run), "--csv", str(folder / "a.csv")],
    "check --csv": lambda run, folder: ["mlperf", "check", str(run), "--csv", str(folder / "c.csv")],
}

# Commands that are ended or have odd surroundings
COMMANDS = {"rehearsal": rehearsal}
READINGS = {
    "check": lambda sources, at: [DLEMU, "mlperf", "check", f"{sources}/rehearsal", "--csv", f"{at}.csv"],
    "audit": lambda sources, at: [DLEMU, "audit", f"{sources}/rehearsal", "--csv", f"{at}.csv"],
}
SOURCES = {"rehearsal": HERE / "rehearsal"}
INPUTS = {"rehearsal": ("", REHEARSAL, "tree", "tree/**/summary.json", "tree/**/*_output.json", "runs")}
READ = {"check": "rehearsal", "audit": "rehearsal"}
OWN_PLACES = {"rehearsal": "-made", "check": ".csv", "audit": ".csv"}
ENDS = {"rehearsal": signal.SIGINT}
MANY_RUNS = {"rehearsal": True}
RESULT_READERS = {REHEARSAL: check_folder}
CHEAPEST = {"mlperf": lambda folder: (["check", str(folder)], 2, ""), "audit": lambda folder: ([str(folder)], 2, "")}
READS_SETTINGS = {"datasize": ("mlperf", "datasize", "workload=unet3d", "accelerator=h100", "--json")}
NO_TEXT = {"audit": ["audit", "\udce4"]}

# What others start and go on with
KEPT = {
    r"results/unet3d/mlperf-[\d-]+": HERE / "rehearsal",
    r"submission/?|closed/?|open/?|results/?|results/training/unet3d/run/[\d_]+": HERE / "rehearsal" / "tree" / "open",
}
