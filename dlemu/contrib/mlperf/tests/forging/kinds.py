"""Kinds of forgery: each changes a tree in a way that no honest tool leaves behind, and names a rule that tells of it.

Each rule of the check is broken here at least once, or in a test that needs a tree of its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dlemu.contrib.mlperf.audit import audited_run
from dlemu.contrib.mlperf.tests.changes import (
    Change,
    config,
    drop,
    edited,
    end,
    ended_at,
    files_of,
    first,
    logged_by_dlemu,
    metadata,
    of_the_first,
    override,
    processes,
    put,
    runs,
    setting,
    summary,
)
from dlemu.contrib.mlperf.tests.checkpoint_leaves import leaves as calls
from dlemu.contrib.mlperf.tests.golden import STAMP, client, config_folder, edit, moved

META = "*_metadata.json"
CALLS = f"checkpointing/*/2*/{META}"


class Inapplicable(Exception):
    """The tree has nothing of the kind."""


@dataclass(frozen=True)
class Forgery:
    """One way to forge a tree."""

    name: str
    rules: frozenset[str]
    """Any of which tells of it; `warning:RULE` wants that severity."""
    change: Change
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """Holds while the forged tree is checked: a fault of dlemu's own, which no file provokes."""
    edition: str = "3.0"

    def fits(self, base: str) -> bool:
        """Whether a tree is of its edition."""
        return (base == "2.0") == (self.edition == "2.0")

    def told_by(self, found: Iterable[tuple[str, str, str]]) -> bool:
        """Whether one of its rules is among what was found (rule, severity, what was seen)."""
        return any({rule, f"{severity}:{rule}"} & self.rules for rule, severity, _ in found)

    def names(self, rule: str) -> bool:
        """Whether a rule is one of its own, of any severity."""
        return any(own.rpartition(":")[2] == rule for own in self.rules)


def _forgery(name: str, rules: str, change: Change, edition: str = "3.0") -> Forgery:
    return Forgery(name, frozenset(rules.split()), change, edition=edition)


def leaves(root: Path, phase: str = "") -> list[Path]:
    """The folders of calls, in order of their names; with `phase` those of one phase of training."""
    found = sorted(path for path in root.rglob("2*_*") if path.is_dir() and len(path.name) == 15)
    if phase:
        found = [path for path in found if path.parent.name == phase]
    if not found:
        raise Inapplicable
    return found


def ran(root: Path) -> list[Path]:
    """The folders that hold a summary."""
    return [path.parent for path in every(root, "summary.json")]


def every(root: Path, pattern: str) -> list[Path]:
    """The paths that match, of which there is one at least."""
    found = sorted(root.rglob(pattern))
    if not found:
        raise Inapplicable
    return found


def _first(root: Path, pattern: str) -> Path:
    return every(root, pattern)[0]


def for_all(paths: Iterable[Path], change: Callable[[Path], object]) -> None:
    for path in paths:
        change(path)


def each(pattern: str, change: Callable[[Path], object]) -> Change:
    """Change all that match."""
    return lambda root: for_all(every(root, pattern), change)


def together(*changes: Change) -> Change:
    """Make several changes at once."""
    return lambda root: [change(root) for change in changes]


def one(root: Path, pattern: str) -> Path:
    """The first path that matches below the last leaf that has one."""
    for leaf in reversed(ran(root)):
        for path in sorted(leaf.glob(pattern)):
            return path
    raise Inapplicable


def trained(root: Path) -> Path:
    """The folder that the runs of training lie in; the tree itself where its edition has no such folder."""
    return next(iter(sorted(root.rglob("training"))), root)


def trainings(root: Path) -> list[Path]:
    """The folders of runs of training that hold a summary."""
    found = [folder for folder in ran(trained(root)) if "checkpointing" not in folder.parts]
    if not found:
        raise Inapplicable
    return found


def organisation(root: Path) -> Path:
    """DIVISION/ORG."""
    for division in sorted(root.iterdir()):
        if division.name.lower() in ("closed", "open"):
            return next(path for path in sorted(division.iterdir()) if path.is_dir())
    raise Inapplicable


def changed(pattern: str, change: Callable[[Any], Any]) -> Change:
    return lambda root: edit(one(root, pattern), change)


def changed_first(pattern: str, change: Callable[[Any], Any]) -> Change:
    return lambda root: edit(_first(root, pattern), change)


def _to_year(year: int) -> Change:
    """Move everything that a tree tells of its time, folders too, into another year."""

    def apply(root: Path) -> None:
        for leaf in leaves(root):
            stamp = datetime.strptime(leaf.name, STAMP)
            shift = stamp.replace(year=year) - stamp
            for path in leaf.glob("*.json"):
                content = moved(json.loads(path.read_text()), shift)
                if path.name.endswith("_metadata.json"):
                    content["run_datetime"] = stamp.replace(year=year).strftime(STAMP)
                path.write_text(json.dumps(content))
            leaf.rename(leaf.with_name(stamp.replace(year=year).strftime(STAMP)))

    return apply


def _copied_rank(jitter: float) -> Change:
    """Give one rank the steps of another, each changed by so much of itself."""

    def apply(root: Path) -> None:
        root = trained(root)
        content = json.loads(one(root, "0_output.json").read_text())
        for epoch in (value for key, value in content.items() if key.isdigit()):
            for name in ("load", "proc"):
                for block, values in epoch[name].items():
                    epoch[name][block] = [value * (1 + jitter * (-1) ** index) for index, value in enumerate(values)]
        if not any(epoch["load"] for key, epoch in content.items() if key.isdigit()):
            raise Inapplicable
        one(root, "1_output.json").write_text(json.dumps(content))

    return apply


def _copied_epoch(root: Path) -> None:
    def copy(content: Any) -> None:
        if not content["1"]["load"]:
            raise Inapplicable
        content["2"] = {**content["1"]}

    edit(one(trained(root), "0_output.json"), copy)


def _copied_figures(root: Path) -> None:
    def copy(content: Any) -> None:
        for key in ("train_au_percentage", "train_throughput_samples_per_second"):
            content["metric"][key][1] = content["metric"][key][0]

    edit(one(trained(root), "summary.json"), copy)


def _copied_stamps(root: Path) -> None:
    source = one(root, "0_per_epoch_stats.json")
    for path in sorted(source.parent.glob("[1-9]_per_epoch_stats.json"))[:1]:
        shutil.copy(source, path)
        return
    raise Inapplicable


def _checkpoints_overlap(root: Path) -> None:
    def overlap(content: Any) -> None:
        parts = [value for name, value in content["1"].items() if "_ckpt" in name]
        if len(parts) < 2:
            raise Inapplicable
        length = datetime.fromisoformat(parts[1]["end"]) - datetime.fromisoformat(parts[1]["start"])
        parts[1]["start"] = parts[0]["start"]
        parts[1]["end"] = (datetime.fromisoformat(parts[0]["start"]) + length).isoformat()

    edit(one(root, "3_per_epoch_stats.json"), overlap)


def _without_steps(change: Callable[[Any], None], name: str) -> Change:
    """Take the steps of every run of training away, and change one of the files that are left of each."""

    def apply(root: Path) -> None:
        for folder in trainings(root):
            for path in folder.glob("*_output.json"):
                path.unlink()
            for path in folder.glob(name):
                edit(path, change)

    return apply


def _au(percent: float, called: str) -> Callable[[Any], None]:
    """Have a summary print another AU, in every epoch alike."""

    def change(content: Any) -> None:
        metric = content["metric"]
        metric["train_au_percentage"] = [percent] * len(metric["train_au_percentage"])
        metric |= {"train_au_mean_percentage": percent, "train_au_meet_expectation": called}
        metric["train_au_stdev_percentage"] = 0.0

    return change


def _short_blocks(content: Any) -> None:
    """Let each block have taken a tenth of its time."""
    for epoch in content.values():
        start, end = (datetime.fromisoformat(epoch["block1"][key]) for key in ("start", "end"))
        epoch["block1"]["end"] = (start + (end - start) / 10).isoformat()


def _slow_first_steps(root: Path) -> None:
    """Let each first step take half a minute longer, with 100 readers that fetch batches meanwhile."""
    for path in every(trained(root), "*_output.json"):
        edit(path, _longer_step)
    for path in trained(root).rglob("*per_epoch_stats.json"):
        edit(path, _earlier_start)
    for path in trained(root).rglob("config.yaml"):
        edit(path, lambda told: told["workload"].setdefault("reader", {}).update(read_threads=100))


def _longer_step(content: Any) -> None:
    for epoch in (value for key, value in content.items() if key.isdigit()):
        if not epoch["load"]:
            raise Inapplicable
        for name in ("load", "proc"):
            epoch[name]["block1"][0] += 30


def later(moment: str, seconds: float) -> str:
    return (datetime.fromisoformat(moment) + timedelta(seconds=seconds)).isoformat()


def _earlier_start(content: Any) -> None:
    for epoch in content.values():
        for part in (epoch, epoch["block1"]):
            part["start"] = later(part["start"], -30)


def _of_model(name: str) -> Change:
    """Have all calls of checkpoints name another model."""
    return each(
        CALLS, lambda path: edit(path, lambda told: told.update(model=name, args={**told["args"], "model": name}))
    )


def _of_v2(root: Path) -> None:
    """Let nothing tell of v3.0, so that v2.0's rules hold."""
    _first(root, CALLS)  # of checkpoints alone
    for path in root.rglob("*_metadata.json"):
        edit(path, _told_of_v2)
    for name in (".mlps-code-image", "fs_separation.json"):
        for path in root.rglob(name):
            path.unlink()


def _told_of_v2(content: Any) -> None:
    for key in ("system_info", "invocation_start_time"):
        content.pop(key, None)
    for key in ("data_access_protocol", "systemname"):
        content.get("args", {}).pop(key, None)
    content.update(edition="2.0")


def _late(phase: str) -> Change:
    """Let a phase come after the runs, by all that it tells."""

    def apply(root: Path) -> None:
        last, leaf = leaves(root, "run")[-1], leaves(root, phase)[0]
        stamp = (datetime.strptime(last.name, STAMP) + timedelta(hours=3)).strftime(STAMP)
        began = datetime.strptime(stamp, STAMP).isoformat()
        for path in leaf.glob("*_metadata.json"):
            edit(path, lambda told: told.update(run_datetime=stamp, invocation_start_time=began))
        leaf.rename(leaf.with_name(stamp))

    return apply


def _tampered_code(root: Path) -> None:
    for path in root.rglob(".code-hash.json"):
        if "hash" in json.loads(path.read_text()):
            (path.parent / "report.py").write_text("AU = 100\n")
            return
    raise Inapplicable


def _two_images(root: Path) -> None:
    pool = _first(root, ".code-hash.json").parent
    other = pool.with_name("code-other")
    shutil.copytree(pool, other)
    edit(other / ".code-hash.json", lambda told: told.update(hash="f" * 32))
    one(root, ".mlps-code-image").write_text("md5-tree-v2:" + "f" * 32)


def _sums(begin: str, factor: float | None = 1.05) -> Change:
    """Change the figures of such names in the sums of all runs; None: delete them."""

    def apply(root: Path) -> None:
        for path in root.rglob("results.json"):
            rows = json.loads(path.read_text())
            for row in rows if isinstance(rows, list) else [rows]:
                if found := [key for key in row if key.startswith(begin)]:
                    for key in found:
                        value = row.pop(key)
                        row |= {} if factor is None else {key: factor * value}
                    path.write_text(json.dumps(rows))
                    return
        raise Inapplicable

    return apply


def _described(change: Callable[[Any], object]) -> Change:
    def of_the_system(told: Any) -> None:
        change(told["system_under_test"])

    return changed_first("systems/*.yaml", of_the_system)


def _put(*keys: str, value: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        if keys[-1] not in content or content[keys[-1]] == value:
            raise Inapplicable
        content[keys[-1]] = value

    return change


def kv(root: Path, place: str = "option_1/trial_0") -> Path:
    """One rank's results of a run of kv_cache."""
    return _first(root, f"kv_cache/*/run/*/{place}/**/kvcache_results_*.json")


KV_SUMMARY = "kv_cache/*/run/*/summary.json"


def _kv_told(change: Callable[[Any], Any]) -> Change:
    return changed_first(KV_SUMMARY, change)


def _kv_sum(name: str, factor: float) -> Change:
    def change(told: Any) -> None:
        told["options"]["1"][f"aggregated_{name}"] *= factor

    return _kv_told(change)


def _kv_rank(change: Callable[[Any], Any]) -> Change:
    return lambda root: edit(kv(root), change)


def _kv_stat(name: str, factor: float | None) -> Change:
    def change(told: Any) -> None:
        stats = told["summary"]["cache_stats"]
        stats[name] = 100.0 if factor is None else stats[name] * factor

    return _kv_rank(change)


def _kv_meta(change: Callable[[Any], Any]) -> Change:
    return changed_first("kv_cache/*/run/*/*_metadata.json", change)


def _kv_commands(old: str, new: str, most: int | None = None) -> Change:
    def change(told: Any) -> None:
        for call in told["command_output_files"][:most]:
            call["command"] = call["command"].replace(old, new)

    return _kv_meta(change)


def _gone(*keys: str) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return change


def _trained(name: str, change: Callable[[Any], None]) -> Change:
    return lambda root: edit(trainings(root)[-1] / name, change)


def _copied_times(root: Path) -> None:
    """Give a run another's block times under figures of its own, and take the steps of both away."""
    first, second = trainings(root)[-2:]
    start = [json.loads((run / "summary.json").read_text())["start"] for run in (first, second)]
    shift = datetime.fromisoformat(start[1]) - datetime.fromisoformat(start[0])
    for path in first.glob("*per_epoch_stats.json"):
        (second / path.name).write_text(json.dumps(moved(json.loads(path.read_text()), shift)))
    for path in (*first.glob("*_output.json"), *second.glob("*_output.json")):
        path.unlink()


def _in_every_config(section: str, key: str, value: object) -> Change:
    def apply(root: Path) -> None:
        for run in trainings(root):
            edit(config_folder(run) / "config.yaml", lambda told: told["workload"][section].update({key: value}))

    return apply


_OF_ALL_RANKS = (
    ("summary", "elapsed_time"),
    ("summary", "total_requests"),
    ("summary", "total_tokens"),
    ("summary", "total_storage_io_time"),
    ("summary", "avg_throughput_tokens_per_sec"),
    ("summary", "storage_io_latency_ms"),
    ("summary", "cache_stats", "tier_storage_read_bandwidth_gbps"),
    ("summary", "cache_stats", "tier_storage_kv_bytes_read_gb"),
    ("end_to_end_latencies",),
)


def _kv_waits(root: Path) -> None:
    """Let a rank keep its latencies beside a 95th percentile that is none of theirs."""

    def change(told: Any) -> None:
        total = told["summary"]["total_storage_io_time"]
        told["storage_latencies"] = [total / 100] * 100
        told["summary"]["storage_io_latency_ms"]["p95"] = 1.0

    edit(kv(root), change)


def _kv_tokens(root: Path) -> None:
    """Raise a rank's tokens/s, and what the summary makes of them."""
    key, path = "avg_throughput_tokens_per_sec", kv(root)
    told = json.loads(path.read_text())["summary"]
    more = 0.05 * told["total_tokens"] / told["elapsed_time"]
    edit(path, lambda told: told["summary"].update({key: told["summary"][key] + more}))
    edit(
        _first(root, KV_SUMMARY),
        lambda told: told["options"]["1"].update(
            {f"aggregated_{key}": told["options"]["1"][f"aggregated_{key}"] + more / 3}
        ),
    )


def _less_work(told: Any) -> None:
    """Let the devices have read a tenth, in as little time."""
    first, last = (told["cluster_snapshots"][moment]["hosts"][0]["disks"][0] for moment in ("start", "end"))
    for key in ("sectors_read", "time_doing_ios_ms"):
        last[key] = first[key] + (last[key] - first[key]) // 10


def _a_day_later(root: Path) -> None:
    last = runs(root)[-1]
    last.rename(last.with_name((datetime.strptime(last.name, STAMP) + timedelta(days=1)).strftime(STAMP)))


def _workload(root: Path) -> Path:
    """training/MODEL."""
    return first(root).parents[1]


def _made(root: Path) -> Path:
    """The call of datagen."""
    return next((_workload(root) / "datagen").iterdir())


def _without_code(root: Path) -> None:
    for image in [path.parent for path in root.rglob(".code-hash.json")]:
        shutil.rmtree(image)
    for pointer in root.rglob(".mlps-code-image"):
        pointer.unlink()


def _second_system(root: Path) -> None:
    for suffix in ("yaml", "pdf"):
        path = _first(root, f"systems/*.{suffix}")
        shutil.copy(path, path.with_stem("spare"))


def _description(folder: Path) -> Path:
    """Of the system that a model's checkpoints are of."""
    return folder.parents[3] / f"systems/{folder.parents[1].name}.yaml"


def _able(**capabilities: Any) -> Change:
    """Change what the system can do; None: say nothing of it."""

    def change(told: Any) -> None:
        stated = {**told["system_under_test"]["solution"]["capabilities"], **capabilities}
        kept = {name: value for name, value in stated.items() if value is not None}
        told["system_under_test"]["solution"]["capabilities"] = kept

    return lambda folder: edit(_description(folder), change)


def _of_checkpoints(change: Callable[[Path], object]) -> Change:
    """Change the folder of a model's checkpoints."""
    return lambda root: change(_first(root, "checkpointing/*"))


def _in_memory(root: Path) -> None:
    """Put the dataset into memory, by all papers that tell of it."""
    place = "/dev/shm/unet3d"
    config("dataset", "data_folder", value=place)(root)
    metadata("args", "data_dir", value="/dev/shm")(root)
    metadata("override_parameters", "dataset.data_folder", value=place)(root)


def _on_two_hosts(root: Path) -> None:
    """Let one rank of the first run have a host of its own."""
    edit(first(root) / "summary.json", put("num_hosts", value=2))
    for path in first(root).glob("*_output.json"):
        edit(path, put("hostname", value="other" if path.name.startswith("3_") else "node0"))


def _another_log(root: Path) -> None:
    (first(root) / "dlio.log").write_text("[OUTPUT] 2026-01-01T00:00:00.0 Running DLIO [Training] with 8 process(es)\n")


def _drives(read_gib: float) -> Any:
    """Return the counters of one drive before and after a call."""
    zero = {"device_name": "nvme0n1", "sectors_read": 0, "sectors_written": 0, "time_doing_ios_ms": 0}
    after = zero | {"sectors_read": read_gib * 2**21}
    return {when: {"hosts": [{"hostname": "node0", "disks": [at]}]} for when, at in (("start", zero), ("end", after))}


def _staggered(root: Path) -> None:
    """Let each rank of a call save after the one before it."""
    for rank, path in enumerate(sorted(calls(root)[0].glob("*_per_epoch_stats.json"))):

        def change(content: Any, seconds: float = 100.0 * rank) -> None:
            for part in content["1"].values():
                if isinstance(part, dict):
                    part |= {when: later(part[when], seconds) for when in ("start", "end") if when in part}

        edit(path, change)


def _of_rank_0(change: Callable[[Any], None]) -> Change:
    """Change the steps of rank 0 in the first run."""
    return lambda root: edit(one(root, "0_output.json"), change)


def _fewer_steps(content: Any) -> None:
    for key in ("load", "proc", "compute"):
        content["1"][key]["block1"] = content["1"][key]["block1"][:-50]


def _without_waits(content: Any) -> None:
    for epoch in (value for key, value in content.items() if key.isdigit()):
        epoch["load"]["block1"] = [0.0] * len(epoch["load"]["block1"])
        epoch["proc"]["block1"][0] += 2.0


def _two_groups(root: Path) -> None:
    """Describe one host more, of a kind of its own."""
    for path in (organisation(root) / "systems").glob("*.yaml"):
        edit(path, lambda told: told["system_under_test"]["clients"].append(client()))


def _hidden(root: Path) -> None:
    shutil.copytree(first(root), first(root).with_name(".20260301_110000"))


def _cut_block(content: Any) -> None:
    """Let a block end ten seconds early."""
    block = content["1"]["block1"]
    block["end"] = (datetime.fromisoformat(block["end"]) - timedelta(seconds=10)).isoformat()


_SEPARATE = "dataset.filesystem checkpoint.filesystem"
_STDEV = "record_length_bytes_stdev"
_ANOTHER_DAY = {"invocation_start_time": "2026-02-01T01:00:00"}
KINDS: tuple[Forgery, ...] = (
    # trees
    _forgery("systems/ is gone", "submission.folders", lambda root: shutil.rmtree(organisation(root) / "systems")),
    _forgery("a foreign folder at the top", "submission.top", lambda root: (root / "notes").mkdir()),
    _forgery("a foreign folder of the organisation", "submission.folders submission.top",
             lambda root: (organisation(root) / "x").mkdir()),
    _forgery("the organisation has a blank", "submission.name",
             lambda root: organisation(root).rename(organisation(root).with_name("a b"))),
    _forgery("the code's image is gone", "submission.code code.image",
             lambda root: shutil.rmtree(_first(root, ".code-hash.json").parent)),
    _forgery("a dataset in no time", "time.datagen",
             each(f"datagen/*/{META}", lambda path: edit(path, put("runtime", value=2.0)))),
    _forgery("datagen goes on during the runs", "time.phases",
             each(f"datagen/*/{META}", lambda path: edit(path, put("runtime", value=9e4)))),
    _forgery("two groups of hosts for one", "systems.hosts", _two_groups),
    _forgery("a file was added to the code", "code.changed", _tampered_code),
    _forgery("two images in one result", "code.mixed", _two_images),
    _forgery("metadata of checkpoints are gone", "files.checkpoint", each(CALLS, Path.unlink)),
    _forgery("a leaf names another edition", "edition.differs", changed(META, lambda told: told.update(edition="2.0"))),
    # papers
    _forgery("metadata: []", "papers.missing", lambda root: one(root, META).write_text("[]")),
    _forgery("metadata: {}", "papers.missing", lambda root: one(root, META).write_text("{}")),
    _forgery("metadata without args", "papers.missing", changed(META, lambda told: told.pop("args"))),
    _forgery("overrides.yaml: []", "papers.missing",
             lambda root: one(root, "dlio_config/overrides.yaml").write_text("[]")),
    _forgery("hydra.yaml: {}", "papers.missing", lambda root: one(root, "dlio_config/hydra.yaml").write_text("{}")),
    _forgery("config.yaml: {}", "papers.missing config.incomplete",
             lambda root: one(root, "dlio_config/config.yaml").write_text("{}")),
    _forgery("summary.json: {}", "summary.incomplete checkpoint.differs unapplied",
             lambda root: one(root, "summary.json").write_text("{}")),
    _forgery("results.json: []", "results.differ", lambda root: _first(root, "results.json").write_text("[]")),
    _forgery("results.json: {}", "results.differ", lambda root: _first(root, "results.json").write_text("{}")),
    _forgery("called INVALID", "division.differs", changed(META, _put("verification", value="INVALID"))),
    _forgery("called OPEN", "division.differs", changed(META, _put("verification", value="OPEN"))),
    _forgery("run as whatif", "division.differs", changed(META, _put("args", "mode", value="whatif"))),
    _forgery("it failed", "runs.exit", changed(META, lambda told: told.update(exit_status=1))),
    # time
    _forgery("in 2032", "time.year", _to_year(2032)),
    _forgery("in 2016", "time.year", _to_year(2016)),
    _forgery("epochs overlap", "time.order", lambda root: edit(
        one(trained(root), "*per_epoch_stats.json"), lambda told: told["2"].update(start=told["1"]["start"]))),
    _forgery("checkpoints overlap", "time.order", _checkpoints_overlap),
    _forgery("datagen after the runs", "time.phases", _late("datagen")),
    _forgery("datasize after the runs", "time.phases", _late("datasize")),
    _forgery("the summary begins late", "time.order checkpoint.differs", lambda root: edit(
        one(root, "summary.json"), lambda told: told.update(start=later(told["start"], 60)))),
    _forgery("the tool was shorter", "time.length", changed(META, _put("runtime", value=1.0))),
    _forgery("called another day", "runs.misdated", changed(META, _put("run_datetime", value="20260201_010000"))),
    _forgery("began another day", "runs.misdated", changed(META, lambda told: told.update(_ANOTHER_DAY))),
    # copies
    _forgery("a rank's steps are another's", "ranks.copied", _copied_rank(0.0)),
    _forgery("a rank's steps nearly are another's", "ranks.copied", _copied_rank(1e-9)),
    _forgery("an epoch's steps are another's", "ranks.copied", _copied_epoch),
    _forgery("an epoch's figures are another's", "epochs.copied", _copied_figures),
    _forgery("a rank's stamps are another's", "ranks.copied rank.differs", _copied_stamps),
    # what is recomputed
    _forgery("an AU below what the blocks took", "au.impossible", _without_steps(_au(40.0, "fail"), "summary.json")),
    _forgery("an AU below the threshold", "au.low", _without_steps(_au(89.0, "fail"), "summary.json")),
    _forgery("rank 0 took fewer steps", "ranks.steps", _of_rank_0(_fewer_steps), "2.0"),
    _forgery("rank 0 never waited", "steps.parts", _of_rank_0(_without_waits), "2.0"),
    _forgery("ranks' hosts have more memory", "hosts.memory",
             each("*_output.json", lambda path: edit(path, put("host_memory_GB", value=125.0))), "2.0"),
    _forgery("more hosts' memory than hosts", "hosts.differ", summary("host_memory_GB", value=[2.0] * 4), "2.0"),
    _forgery("one run on another host", "hosts.changed",
             together(of_the_first("summary.json", "hostname", value="n7"),
                      of_the_first("*_output.json", "hostname", value="n7")), "2.0"),
    _forgery("blocks shorter than their steps", "blocks.short",
             _without_steps(_short_blocks, "*per_epoch_stats.json")),
    _forgery("prefetch hides slow first steps", "au.prefetch", _slow_first_steps),
    Forgery("the audit itself fails", frozenset({"audit.failed"}), trainings,
            partial(patch.object, audited_run, "audit_run", side_effect=RuntimeError("a fault"))),
    _forgery("a model that no edition has", "checkpoint.model", _of_model("gpt-175b")),
    _forgery("8 processes of a larger model", "checkpoint.subset", _of_model("llama3-70b")),
    _forgery("of an edition that never synced", "checkpoint.unsynced", _of_v2),
    # what is gone
    _forgery("a rank's files are gone", "files.ranks",
             lambda root: for_all(one(root, "3_per_epoch_stats.json").parent.glob("3_*.json"), Path.unlink)),
    _forgery("sums of training are forged", "results.differ", _sums("train_throughput_mean_samples_per_second")),
    _forgery("sums of checkpoints are forged", "results.differ", _sums("save_checkpoint_io_mean_GB_per_second")),
    _forgery("sums of a rehearsal are forged", "results.differ", _sums("save_gib_per_second")),
    _forgery("the pdf has 0 bytes", "files.empty", lambda root: every(root, "systems/*.pdf")[-1].write_bytes(b"")),
    _forgery("the description has 0 bytes", "files.empty",
             lambda root: every(root, "systems/*.yaml")[-1].write_bytes(b"")),
    _forgery("dlio.log has 0 bytes", "files.empty", lambda root: every(root, "dlio.log")[-1].write_bytes(b"")),
    _forgery("stdout has 0 bytes", "files.empty", lambda root: every(root, "*_run.stdout.log")[-1].write_bytes(b"")),
    _forgery("no sidecar of the file system", _SEPARATE, lambda root: one(root, "fs_separation.json").unlink()),
    _forgery("one file system", _SEPARATE, changed("fs_separation.json", _put("same_filesystem", value=True))),
    # key-value caches
    _forgery("kv: a rank's results are gone", "kv.missing", lambda root: kv(root, "option_2/trial_1").unlink()),
    _forgery("kv: the summary is gone", "kv.missing", lambda root: _first(root, KV_SUMMARY).unlink()),
    _forgery("kv: part of it failed", "kv.missing", _kv_told(lambda told: told.update(partial_failure=True))),
    _forgery("kv: an option is gone", "kv.missing", lambda root: shutil.rmtree(kv(root, "option_3").parents[2])),
    _forgery("kv: a published rate is forged", "kv.differs", _kv_sum("read_bandwidth_gbps", 1.05)),
    _forgery("kv: published tokens/s are forged", "kv.differs", _kv_sum("storage_throughput_tokens_per_sec", 1.05)),
    _forgery("kv: the published p95 is forged", "kv.differs", _kv_sum("p95_latency_ms", 0.5)),
    _forgery("kv: trials are summed", "kv.aggregate", _kv_sum("read_bandwidth_gbps", 3)),
    _forgery("kv: a rank's rate is forged", "kv.differs", _kv_stat("tier_storage_read_bandwidth_gbps", 1.05)),
    _forgery("kv: a rank's bytes are forged", "kv.differs", _kv_stat("tier_storage_kv_bytes_written_gb", 1.05)),
    _forgery("kv: requests are left out", "kv.differs", _kv_rank(lambda told: told["end_to_end_latencies"].pop())),
    _forgery("kv: the clock ran longer", "kv.settings", _kv_rank(_put("summary", "elapsed_time", value=600.0))),
    _forgery("kv: another seed", "kv.settings", _kv_rank(_put("seed", value=7))),
    _forgery("kv: fewer users", "kv.settings", _kv_commands("--num-users 200", "--num-users 100")),
    _forgery("the command had another override", "overrides.differ",
             changed(META, put("executed_command", value="mpirun dlio ++workload.reader.read_type=memory"))),
    _forgery("another setting was asked for", "overrides.differ",
             changed(META, lambda told: told["args"].update(params=["reader.read_threads=4", "train.epochs=1"]))),
    _forgery("kv: an option without its p95", "unapplied",
             _kv_told(_gone("options", "1", "aggregated_p95_latency_ms"))),
    _forgery("an epoch has no rate", "epochs.count",
             changed("summary.json", lambda told: told["metric"]["train_throughput_samples_per_second"].pop())),
    _forgery("no samples/s of epochs", "summary.incomplete",
             _trained("summary.json", _gone("metric", "train_throughput_samples_per_second"))),
    _forgery("no memory of the hosts", "summary.incomplete", _trained("summary.json", _gone("host_memory_GB"))),
    _forgery("a call of checkpoints has no figures", "checkpoint.differs",
             changed_first("checkpointing/*/2*/summary.json", _gone("metric"))),
    _forgery("block times are another run's", "runs.copied", _copied_times),
    _forgery("the log printed another AU", "papers.differ", lambda root: one(trained(root), "dlio.log").write_text(
        "[OUTPUT]\n[METRIC] Training Accelerator Utilization [AU] (%): 1.5000 (0.1000) \n")),
    _forgery("a workload file with a setting more", "workload.hash", _in_every_config("workflow", "mine", True)),
    _forgery("datagen made files of one size", "dataset.differs",
             changed_first("datagen/2*/dlio_config/config.yaml", put("workload", "dataset", _STDEV, value=0))),
    _forgery("a file is a link", "tree.link",
             lambda root: (trainings(root)[-1] / "notes.txt").symlink_to("/etc/hostname")),
    _forgery("sums without their AU", "results.differ", _sums("train_au_", None)),
    _forgery("sums of checkpoints without a rate", "results.differ", _sums("save_", None)),
    _forgery("a reader with a setting more", "workload.differs", _in_every_config("reader", "preloaded", True)),
    _forgery("checkpoints with a setting more", "checkpoint.settings",
             changed_first("checkpointing/*/2*/dlio_config/config.yaml",
                           lambda told: told["workload"].setdefault("reader", {}).update(preloaded=True))),
    *(_forgery(f"kv: no rank has {'.'.join(keys)}", "kv.missing",
               each("kvcache_results_*.json", partial(edit, change=_gone(*keys)))) for keys in _OF_ALL_RANKS),
    _forgery("kv: an option without its rate", "kv.missing",
             _kv_told(_gone("options", "1", "aggregated_read_bandwidth_gbps"))),
    _forgery("kv: a rank without its time", "kv.missing", _kv_rank(_gone("summary", "elapsed_time"))),
    _forgery("kv: the tool was shorter", "time.length", _kv_meta(_put("runtime", value=100.0))),
    _forgery("kv: another folder", "papers.differ", _kv_commands("/mnt/drive/kvcache", "/dev/shm/kvcache")),
    _forgery("kv: an option failed in part", "kv.missing",
             _kv_told(put("options", "1", "partial_failure", value=True))),
    _forgery("kv: an option of more ranks", "kv.differs", _kv_told(put("options", "2", "rank_count", value=9))),
    _forgery("kv: fewer completed", "kv.differs", _kv_rank(_put("requests_completed", value=7))),
    _forgery("kv: the waits are forged", "kv.differs", _kv_waits),
    _forgery("kv: fewer users in one trial", "kv.settings",
             _kv_commands("--num-users 200", "--num-users 100", 1)),
    _forgery("kv: users of one option's summary", "kv.settings", _kv_told(put("options", "3", "num_users", value=7))),
    _forgery("kv: memory in the summary", "kv.settings", _kv_told(lambda told: told.update(gpu_mem_gb=16.0))),
    _forgery("kv: tokens/s of a rank are forged", "kv.differs", _kv_tokens),
    _forgery("kv: more memory", "kv.settings", _kv_commands("--cpu-mem-gb 4", "--cpu-mem-gb 64")),
    _forgery("kv: one trial", "kv.settings", _kv_meta(_put("args", "trials", value=1))),
    _forgery("kv: no pause", "kv.settings", _kv_meta(_put("args", "inter_option_delay", value=0))),
    _forgery("kv: memory served reads", "kv.tiers", _kv_stat("tier_cpu_kv_bytes_read_gb", None)),
    _forgery("kv: tokens are counted twice", "kv.tokens", _kv_stat("storage_tokens_processed", 4)),
    _forgery("kv: a trial is another's copy", "kv.copied",
             lambda root: shutil.copy(kv(root), kv(root, "option_1/trial_1"))),
    _forgery("kv: the devices read less", "kv.device", _kv_meta(_less_work)),
    _forgery("kv: another number of ranks", "papers.differ kv.missing", _kv_meta(_put("num_processes", value=4))),
    _forgery("kv: in the folder of another model", "papers.differ", _kv_meta(_put("model", value="tiny-1b"))),
    _forgery("kv: an option that CLOSED has not", "kv.settings",
             _kv_commands("--config kv.yaml", "--config kv.yaml --prefill-only")),
    # what commands, logs and hosts tell
    _forgery("a library is preloaded", "error:command.preload",
             metadata("executed_command", value="mpirun -n 4 -x LD_PRELOAD=/opt/nosync.so -host n:4 dlio_benchmark")),
    _forgery("an own DLIO runs", "warning:command.preload",
             metadata("args", "mpi_params", value=["-x", "PYTHONPATH=/home/me/dlio"])),
    _forgery("files described, objects read", "papers.differ", config("storage", value={"storage_type": "s3"})),
    _forgery("the dataset is in memory", "data.memory", _in_memory),
    _forgery("the drives read less than the run", "data.device",
             metadata("cluster_snapshots", value=_drives(read_gib=900.0))),
    _forgery("a hidden run", "runs.hidden", _hidden),
    _forgery("a block ends before its steps", "blocks.short",
             lambda root: edit(_first(root, "1_per_epoch*"), _cut_block)),
    _forgery("the log of another run", "papers.differ", _another_log),
    _forgery("three ranks on one host and one on another", "hosts.uneven", _on_two_hosts),
    # papers of training
    _forgery("dlemu ran in DLIO's place", "error:tool.other", logged_by_dlemu),
    # 14,000 files of 146,600,628 bytes are 5 times 382.3 GiB.
    _forgery("memory just below the bound", "warning:dataset.near", summary("host_memory_GB", value=[381.5])),
    _forgery("memory just above the bound", "error:dataset.size", summary("host_memory_GB", value=[384])),
    _forgery("few files on unknown memory", "dataset.steps", together(
        summary("host_memory_GB", value=[]), summary("num_files_train", value=13_000),
        config("dataset", "num_files_train", value=13_000))),
    _forgery("another threshold", "settings.changed", config("metric", "au", value=0.85)),
    _forgery("an override that no division allows", "overrides.unknown", override("++workload.train.seed=7")),
    _forgery("an override that OPEN allows", "overrides.open", override("++workload.reader.data_loader=dali")),
    _forgery("batches read ahead", "overrides.value", config("reader", "prefetch_size", value=16)),
    _forgery("direct I/O of another workload", "overrides.odirect",
             together(config("model", "name", value="retinanet"), config("reader", "odirect", value=True))),
    _forgery("an accelerator of another edition", "workload.unknown", lambda root: [
        (config_folder(run) / "overrides.yaml").write_text("- workload=unet3d_v100\n") for run in runs(root)]),
    _forgery("data beside results", "dataset.folder", metadata("args", "results_dir", value="/data/unet3d")),
    _forgery("metadata without the dataset", "dataset.told", metadata("parameters", value={})),
    _forgery("datagen made fewer files", "dataset.phases", files_of("datagen", 13_000)),
    _forgery("datasize wanted more files", "dataset.made", files_of("datasize", 15_000)),
    _forgery("another dataset in one run", "dataset.differs",
             of_the_first("config.yaml", "workload", "dataset", "data_folder", value="/b")),
    _forgery("other readers in one run", "runs.differ",
             of_the_first("config.yaml", "workload", "reader", "read_threads", value=9)),
    _forgery("a run without its summary", "runs.ended", drop("summary.json")),
    _forgery("a run that ended before it began", "runs.clock", of_the_first("summary.json", "end", value="2001-01-01")),
    _forgery("a rank's file is cut", "file.broken", lambda root: (first(root) / "0_output.json").write_text("{")),
    _forgery("data and results on one file system", "error:dataset.filesystem",
             of_the_first("fs_separation.json", "same_filesystem", value=True)),
    _forgery("a run without its sidecar", "error:dataset.filesystem", drop("fs_separation.json")),
    _forgery("two hosts named for a run on one", "hosts.named", metadata("args", "hosts", value=["a", "b"])),
    _forgery("three hosts for four ranks", "hosts.uneven", summary("num_hosts", value=3)),
    _forgery("a run is gone", "error:runs.count", lambda root: shutil.rmtree(runs(root)[-1])),
    _forgery("a run is not named by its time", "runs.stamp",
             lambda root: first(root).rename(first(root).with_name("x"))),
    _forgery("a day between two runs", "error:runs.gap", _a_day_later),
    _forgery("no sums of training", "files.results", lambda root: _first(root, "training/*/run/results.json").unlink()),
    _forgery("a run without its log", "files.run", drop("dlio.log")),
    _forgery("a run without its output", "files.run", drop("training_run.stdout.log")),
    _forgery("a run without hydra.yaml", "files.run_config", drop("dlio_config/hydra.yaml")),
    _forgery("one rank's steps are gone", "error:files.ranks", drop("3_output.json")),
    _forgery("a foreign phase", "files.phases", lambda root: (_workload(root) / "old").mkdir()),
    _forgery("no datasize", "files.datasize", lambda root: shutil.rmtree(_workload(root) / "datasize")),
    _forgery("datagen without its log", "files.datagen", lambda root: (_made(root) / "dlio.log").unlink()),
    _forgery("datagen without hydra.yaml", "files.datagen_config",
             lambda root: (_made(root) / "dlio_config/hydra.yaml").unlink()),
    _forgery("two calls of datagen", "files.datagen_count",
             lambda root: shutil.copytree(_made(root), _made(root).with_name("20260101_000000"))),
    _forgery("datagen is not named by its time", "files.datagen_stamp",
             lambda root: _made(root).rename(_made(root).with_name("x"))),
    _forgery("no code, and nothing that names it", "submission.code", _without_code),
    _forgery("a benchmark that no edition has", "submission.category",
             lambda root: (_workload(root).parents[1] / "other").mkdir()),
    _forgery("a workload that the edition has not", "submission.workload",
             lambda root: _workload(root).with_name("bert").mkdir()),
    _forgery("no pdf", "error:systems.pdf", lambda root: _first(root, "systems/*.pdf").unlink()),
    _forgery("a system without results", "systems.missing", _second_system),
    _forgery("a system of another name", "systems.name", _described(put("solution", "submission_name", value="other"))),
    _forgery("more hosts described than ran", "systems.hosts", _described(put("clients", value=[client(quantity=2)]))),
    _forgery("more memory described than there was", "systems.hosts", _described(put("clients", value=[client(16)]))),
    _forgery("a field still to fill in", "systems.unfilled", _described(put("deployment", value="FILL IN"))),
    # v2.0
    _forgery("no checkpoint", "workflow.checkpoint", config("workflow", "checkpoint", value=False), "2.0"),
    _forgery("a run without metadata", "files.metadata", drop("*_metadata.json"), "2.0"),
    _forgery("a run without overrides.yaml", "files.run_config", drop("dlio_config/overrides.yaml"), "2.0"),
    _forgery("five runs", "warning:runs.count", lambda root: shutil.rmtree(runs(root)[-1]), "2.0"),
    _forgery("four runs", "error:runs.count", lambda root: for_all(runs(root)[:2], shutil.rmtree), "2.0"),
    _forgery("a day between two runs of v2.0", "warning:runs.gap", _a_day_later, "2.0"),
    _forgery("one rank's steps are gone from v2.0", "warning:files.ranks", drop("3_output.json"), "2.0"),
    _forgery("no pdf in v2.0", "warning:systems.pdf", lambda root: _first(root, "systems/*.pdf").unlink(), "2.0"),
    # checkpoints
    *(_forgery(f"checkpoints: {name}", rule, _of_checkpoints(change)) for name, rule, change in (
        ("no fsync", "checkpoint.fsync", setting("checkpoint", "fsync", False)),
        ("ranks one after another", "checkpoint.staggered", _staggered),
        ("a DLIO of one's own", "tool.path", edited(META, lambda told: told["args"].update(dlio_bin_path="/opt/dlio"))),
        ("fewer layers", "checkpoint.settings", setting("model", "num_layers", 31)),
        ("a pause between them", "checkpoint.settings", setting("checkpoint", "time_between_checkpoints", 60)),
        ("a run under another name", "runs.hidden", lambda folder: shutil.copytree(calls(folder)[0], folder / "old")),
        ("of another size", "checkpoint.size", setting("model", "num_layers", 31)),
        ("a setting that no file has", "error:workload.hash", setting("checkpoint", "unheard_of", False)),
        ("16 processes", "checkpoint.processes", processes(16)),
        ("two processes a host", "error:checkpoint.hosts", processes(8, hosts=4)),
        ("four processes a host", "warning:checkpoint.hosts", processes(8, hosts=2)),
        ("none read", "checkpoint.count", lambda folder: shutil.rmtree(calls(folder)[1])),
        ("none written", "checkpoint.count", lambda folder: shutil.rmtree(calls(folder)[0])),
        ("three calls", "checkpoint.calls",
         lambda folder: shutil.copytree(calls(folder)[1], folder / "20260713_120000")),
        ("half a minute between the calls", "error:checkpoint.gap", end("2026-07-13T10:55:10.0")),
        ("calls that overlap by the metadata", "warning:checkpoint.gap",
         edited(META, ended_at("2026-07-13T10:55:50.0"))),
        ("calls that overlap", "checkpoint.overlap", end("2026-07-13T10:55:50.0")),
        ("no end of reading", "checkpoint.duration", edited("summary.json", lambda told: told.pop("end"), 1)),
        ("remapping that is not needed", "checkpoint.remap", _able(remap_time_in_seconds=5)),
        ("no remapping though it is needed", "checkpoint.remap", _able(simultaneous_read=False)),
        ("remapping in no time", "checkpoint.remap", _able(simultaneous_read=False, remap_time_in_seconds=50)),
        ("writing alone", "warning:checkpoint.simultaneous",
         _able(simultaneous_write=False, remap_time_in_seconds=5)),
        ("two hosts of a system for one", "error:checkpoint.simultaneous",
         together(processes(8, hosts=2), _able(multi_host=False))),
        ("no description", "systems.missing", lambda folder: _description(folder).unlink()),
        ("another override", "checkpoint.overrides",
         edited(META, lambda told: told["override_parameters"].update({"checkpoint.fsync": True}))),
        ("no accelerator", "checkpoint.accelerator", edited(META, lambda told: told.update(accelerator=None))),
        ("an older accelerator", "checkpoint.accelerator", edited(META, lambda told: told.update(accelerator="v100"))),
        ("beside their results", "checkpoint.folder",
         edited(META, lambda told: told["args"].update(results_dir="/mnt/llama3-8b/"))),
        ("a forged rate", "checkpoint.differs",
         edited("summary.json", lambda told: told["metric"].update(save_checkpoint_io_mean_GB_per_second=9.9))),
        ("no ranks' files", "files.checkpoint",
         lambda folder: for_all(calls(folder)[0].glob("*_output.json"), Path.unlink)),
        ("no hydra.yaml", "files.checkpoint_config",
         lambda folder: (calls(folder)[0] / "dlio_config/hydra.yaml").unlink()),
        ("no sums", "files.checkpoint_results", lambda folder: (folder / "results.json").unlink()),
    )),
)  # fmt: skip


# Every single fact of every paper, changed by itself.

_LONELY = frozenset(
    {
        *("made_by", "rehearsal", "run_result_output", "executed_command", "host_cpu_count", "num_files_eval"),
        *("args.hosts", "args.client_host_memory_in_gb", "system_info.num_hosts", "invocation_end_time", "edition"),
        *("host_processor_name", "potential_caching", "probed_at", "probed_by_host", "method", "version"),
        *("probed_by_rank", "data_or_chkpt_realpath", "results_realpath", "runtime", "override_parameters"),
    }
)
"""What only one paper tells, or what may honestly be otherwise: no other file can show that it was changed."""


def single_facts(root: Path) -> Iterator[Forgery]:
    """Yield a forgery for each value of each paper of one leaf of each benchmark and phase."""
    for pattern in (META, "summary.json", "fs_separation.json"):
        for leaf in {path.parent.parent: path for path in leaves(root)}.values():
            for path in leaf.glob(pattern):
                inside = path.relative_to(root)
                for keys, value in _values(json.loads(path.read_text()), ()):
                    where = ".".join(keys)
                    if where == "epochs" and "checkpointing" in inside.parts:
                        continue  # of checkpoints alone it says nothing
                    if not any(where == lonely or where.startswith(f"{lonely}.") for lonely in _LONELY):
                        yield _fact(inside, keys, value)


def _fact(inside: Path, keys: tuple[str, ...], value: Any) -> Forgery:
    name = f"{inside.parts[-4]}/{inside.parts[-3]} {inside.name.rpartition('_')[2]}: {'.'.join(keys)}"
    return Forgery(name, frozenset(), lambda root: edit(root / inside, _put(*keys, value=_other(value))))


def _values(content: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _values(value, (*keys, key))
    elif content is not None and content != "" and not isinstance(content, list):
        yield keys, content


def _other(value: Any) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 + 1
    if value.endswith(" kB"):
        return f"{int(value.removesuffix(' kB')) * 2} kB"
    try:
        return (datetime.fromisoformat(value) - timedelta(days=400)).isoformat()
    except ValueError:
        return str(int(value) + 7) if value.isdigit() else f"{value}x"
