"""A rehearsal of kv_cache: nine runs in order, the tool's leaf by the tool's formulas, and a check that accepts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datagen.errors import DlemuError, UserError
from dlemu.comm.environment import StorageFacts
from dlemu.config import load
from dlemu.contrib.kvcache.job import KVCACHE
from dlemu.contrib.kvcache.rows import RANK_ROW
from dlemu.contrib.mlperf.check.judge import Checked
from dlemu.contrib.mlperf.rehearsal import rehearse_kv
from dlemu.contrib.mlperf.rehearsal.rehearse_kv import KvRehearsal, KvRehearsed
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.results.journal import RunJournal
from dlemu.results.measured import RunFacts
from dlemu.runner.rows_job import RowsRun

SECOND, MIB = 10**9, 2**20
Words = list[Sequence[str]]


class Runs:
    """What is asked for; a run of made-up requests in place of each."""

    def __init__(self) -> None:
        self.asked: Words = []
        self.made: dict[str, RowsRun] = {}
        self.fails_at = 0

    def run(self, words: Sequence[str], folder: str, look: object, launcher: Sequence[str], name: str) -> None:
        assert name == "kvcache"
        self.asked.append([*launcher, *words])
        if len(self.asked) == self.fails_at:
            raise DlemuError("the storage is gone")
        (Path(folder) / "console.txt").write_text("done\n")
        settings = [word for word in words if not word.startswith("output.")]
        self.made[folder] = made_run(folder, settings, len(self.asked))

    def read(self, folder: str) -> RowsRun:
        return self.made[folder]


def made_run(folder: str, words: list[str], number: int) -> RowsRun:
    """A run of two ranks with requests of all classes; one lasts longer than the clock. Each run is another."""
    workload = KVCACHE.complete(load(words))
    random, rows = np.random.default_rng(number), np.zeros(42, KVCACHE.dtype)
    token_bytes = 327_680 if "kv.option=3" in words else 131_072
    for place, row in enumerate(rows):
        rank, place = divmod(place, 21)
        row["rank"], row["arrived_ns"], row["prompt"] = rank, SECOND, place - 1
        if row["prompt"] == RANK_ROW:
            row["ended_ns"] = 320 * SECOND
            continue
        taken = 319.0 if place == 20 else random.uniform(0.01, 200)
        row["arrived_ns"], row["priority"] = SECOND + 1000, 1 + place % 3
        row["computed_ns"] = row["written_ns"] = row["loaded_ns"] = SECOND + 1000 + round(taken * SECOND)
        row["written_bytes"], row["written_blocks"] = 1000 * token_bytes, 1
        row["read_bytes"], row["storage_blocks"] = 3000 * token_bytes, 3
        row["dram_bytes"] = 500 * token_bytes if "kv.option=2" in words else 0
        row["output_tokens"], row["input_tokens"] = 64, 1000
        row["read_call_ns"], row["write_call_ns"] = round(taken * SECOND / 3), round(taken * SECOND / 9)
    storage = StorageFacts(folder="/mnt/kv", mount="/mnt", file_system="nfs", device="")
    journal = RunJournal(wall_clock_offset_ns=0, started_ns=0, hosts=(), rank_nodes=(0, 0), storage=storage)
    facts = RunFacts(kind="kvcache", workload=workload, ranks=2, seed=1, started_at="", journal=journal)
    return RowsRun(folder, facts, rows, (), KVCACHE)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(rehearse_kv, "run_train", made.run)
    monkeypatch.setattr(rehearse_kv, "read", made.read)
    return made


def rehearsal(
    folder: Path, division: Division = "closed", sleep: Callable[[float], object] = id, more: Sequence[str] = ()
) -> KvRehearsal:
    words = ("workload=mlperf_kv", "ranks=2", "kv.folder=/mnt/kv", *more)
    return KvRehearsal(
        workload=load(list(words)),
        division=division,
        organisation="mylab",
        system="box",
        hosts=1,
        memory_gib_per_host=64.0,
        words=words,
        folder=str(folder),
        launcher="",
        config_dir=None,
        report=lambda line: None,
        sleep=sleep,
    )


def broken(checked: Checked, severity: str = "error") -> set[str]:
    return {located.finding.rule for located in checked.findings if located.finding.severity == severity}


def leaf(folder: Path) -> Path:
    (found,) = folder.glob("tree/closed/mylab/results/box/kv_cache/llama3.1-8b/run/*")
    return found


def test_the_check_accepts_a_closed_rehearsal_and_names_the_window(runs: Runs, tmp_path: Path) -> None:
    pauses: list[float] = []
    done = rehearsal(tmp_path, sleep=pauses.append).run()
    options = [word for asked in runs.asked for word in asked if word.startswith("kv.option")]
    assert options == [f"kv.option={option}" for option in (1, 2, 3) for _ in range(3)]
    assert pauses == [90, 90]
    assert broken(done.checked) == set()
    assert "kv.window" in broken(done.checked, "warning")
    assert "kv.tiers" in broken(done.checked, "info"), "option 2 read from memory"
    assert "kv.tokens" not in broken(done.checked, "warning")


def test_the_summary_is_what_the_ranks_files_say_and_what_the_runs_print(runs: Runs, tmp_path: Path) -> None:
    done: KvRehearsed = rehearsal(tmp_path).run()
    summary: dict[str, Any] = json.loads((leaf(tmp_path) / "summary.json").read_text())
    files = sorted(leaf(tmp_path).glob("option_1/trial_*/rank_*/kvcache_results_*.json"))
    assert len(files) == 3 * 2
    ranks = [json.loads(file.read_text()) for file in files]
    told = [rank["summary"]["cache_stats"]["tier_storage_read_bandwidth_gbps"] for rank in ranks]
    option = summary["options"]["1"]
    assert option["aggregated_read_bandwidth_gbps"] == pytest.approx(sum(told) / 3)
    officials = [trial.official for trial in done.trials if trial.option == 1 and trial.official is not None]
    assert np.mean([one.read_gib_per_second for one in officials]) == pytest.approx(sum(told) / 3)
    assert all(one.true_read_gib_per_second < one.read_gib_per_second for one in officials)
    assert {rank["seed"] for rank in ranks} == {42, 43}
    assert "no submission" in summary["rehearsal"]
    assert "trademark" in (tmp_path / "tree" / "README.txt").read_text()


def test_an_interrupted_rehearsal_goes_on_where_it_was(runs: Runs, tmp_path: Path) -> None:
    runs.fails_at = 5
    with pytest.raises(DlemuError, match="gone"):
        rehearsal(tmp_path).run()
    assert not list(tmp_path.glob("tree/closed/*/results"))
    edited = load([*rehearsal(tmp_path).words, "kv.seconds=7"])  # as of a workload's file: the words are the same
    with pytest.raises(UserError, match=r"with other settings \(the workload's file, .* changed\)"):
        replace(rehearsal(tmp_path), workload=edited).run()
    done = rehearsal(tmp_path).run()
    assert len(runs.asked) == 10
    assert len(done.trials) == 9
    assert broken(done.checked) == set()
    with pytest.raises(UserError, match="finished"):
        rehearsal(tmp_path).run()


def test_open_has_no_pause_and_its_tree_says_so(runs: Runs, tmp_path: Path) -> None:
    pauses: list[float] = []
    done = rehearsal(tmp_path, "open", pauses.append).run()
    assert pauses == [0, 0]
    assert broken(done.checked) == set()


def test_no_file_of_a_rehearsal_holds_a_secret_and_the_runs_get_it(runs: Runs, tmp_path: Path) -> None:
    keys = ("storage.storage_type=s3", "storage.storage_root=b", "+storage.storage_options.secret_access_key=hush4711")
    rehearsal(tmp_path, more=keys).run()
    assert all(keys[-1] in asked for asked in runs.asked)
    told = [path for path in tmp_path.rglob("*") if path.is_file() and "hush4711" in path.read_text()]
    assert told == []
    assert "secret_access_key=withheld" in (tmp_path / "rehearsal.json").read_text()
