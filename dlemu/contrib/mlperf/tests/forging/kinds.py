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
    found = sorted(path.parent for path in root.rglob("summary.json"))
    if not found:
        raise Inapplicable
    return found


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


def removed(pattern: str) -> Change:
    return lambda root: one(root, pattern).unlink()


def written(pattern: str, content: str) -> Change:
    return lambda root: one(root, pattern).write_text(content)


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
            if key not in content["metric"]:
                raise Inapplicable
            content["metric"][key][1] = content["metric"][key][0]

    edit(one(trained(root), "summary.json"), copy)


def _copied_stamps(root: Path) -> None:
    source = one(root, "0_per_epoch_stats.json")
    for path in sorted(source.parent.glob("[1-9]_per_epoch_stats.json"))[:1]:
        shutil.copy(source, path)
        return
    raise Inapplicable


def _epochs_overlap(root: Path) -> None:
    def overlap(content: Any) -> None:
        if "2" not in content:
            raise Inapplicable
        content["2"]["start"] = content["1"]["start"]

    edit(one(trained(root), "*per_epoch_stats.json"), overlap)


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
    if not list(trained(root).rglob("*_output.json")):
        raise Inapplicable
    for path in trained(root).rglob("*_output.json"):
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


def _earlier_start(content: Any) -> None:
    for epoch in content.values():
        for part in (epoch, epoch["block1"]):
            part["start"] = (datetime.fromisoformat(part["start"]) - timedelta(seconds=30)).isoformat()


def _of_model(name: str) -> Change:
    """Have all calls of checkpoints name another model."""

    def apply(root: Path) -> None:
        paths = list(root.rglob("checkpointing/*/2*/*_metadata.json"))
        if not paths:
            raise Inapplicable
        for path in paths:
            edit(path, lambda told: told.update(model=name, args={**told["args"], "model": name}))

    return apply


def _of_v2(root: Path) -> None:
    """Let nothing tell of v3.0, so that v2.0's rules hold."""
    if not list(root.rglob("checkpointing/*/2*/*_metadata.json")):
        raise Inapplicable
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


def _failing_audit() -> AbstractContextManager[object]:
    return patch.object(audited_run, "audit_run", side_effect=RuntimeError("a fault"))


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


def _without_metadata(root: Path) -> None:
    calls = list(root.rglob("checkpointing/*/2*/*_metadata.json"))
    if not calls:
        raise Inapplicable
    for path in calls:
        path.unlink()


def _ranks_gone(root: Path) -> None:
    leaf = one(root, "3_per_epoch_stats.json").parent
    for path in [*leaf.glob("3_*.json")]:
        path.unlink()


def _tampered_code(root: Path) -> None:
    for path in root.rglob(".code-hash.json"):
        if "hash" in json.loads(path.read_text()):
            (path.parent / "report.py").write_text("AU = 100\n")
            return
    raise Inapplicable


def _two_images(root: Path) -> None:
    pools = [path.parent for path in root.rglob(".code-hash.json")]
    if not pools or not list(root.rglob(".mlps-code-image")):
        raise Inapplicable
    other = pools[0].with_name("code-other")
    shutil.copytree(pools[0], other)
    edit(other / ".code-hash.json", lambda told: told.update(hash="f" * 32))
    one(root, ".mlps-code-image").write_text("md5-tree-v2:" + "f" * 32)


def _sums(key: str) -> Change:
    """Change a number of results.json."""

    def apply(root: Path) -> None:
        for path in root.rglob("results.json"):
            rows = json.loads(path.read_text())
            for row in rows if isinstance(rows, list) else [rows]:
                if key in row:
                    row[key] *= 1.05
                    path.write_text(json.dumps(rows))
                    return
        raise Inapplicable

    return apply


def _described(change: Callable[[Any], object]) -> Change:
    def of_the_system(told: Any) -> None:
        change(told["system_under_test"])

    return lambda root: edit(_first(root, "systems/*.yaml"), of_the_system)


def _emptied(pattern: str) -> Change:
    def apply(root: Path) -> None:
        found = sorted(root.rglob(pattern))
        if not found:
            raise Inapplicable
        found[-1].write_bytes(b"")

    return apply


def _each_rerun(change: Callable[[Path], object]) -> Change:
    return lambda root: change(organisation(root))


def _put(*keys: str, value: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        if keys[-1] not in content or content[keys[-1]] == value:
            raise Inapplicable
        content[keys[-1]] = value

    return change


def _foreign(folder: Path) -> None:
    (folder / "x").mkdir()


def kv(root: Path, place: str = "option_1/trial_0") -> Path:
    """One rank's results of a run of kv_cache."""
    return _first(root, f"kv_cache/*/run/*/{place}/**/kvcache_results_*.json")


def _first(root: Path, pattern: str) -> Path:
    found = sorted(root.rglob(pattern))
    if not found:
        raise Inapplicable
    return found[0]


def _kv_summary(root: Path) -> Path:
    return _first(root, "kv_cache/*/run/*/summary.json")


def _kv_told(change: Callable[[Any], Any]) -> Change:
    return lambda root: edit(_kv_summary(root), change)


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
    return lambda root: edit(_first(root, "kv_cache/*/run/*/*_metadata.json"), change)


def _kv_commands(old: str, new: str) -> Change:
    def change(told: Any) -> None:
        for each in told["command_output_files"]:
            each["command"] = each["command"].replace(old, new)

    return _kv_meta(change)


def _kv_first_command(old: str, new: str) -> Change:
    def change(told: Any) -> None:
        first = told["command_output_files"][0]
        first["command"] = first["command"].replace(old, new)

    return _kv_meta(change)


def _command_override(root: Path) -> None:
    edit(one(root, META), lambda told: told.update(executed_command="mpirun dlio ++workload.reader.read_type=memory"))


def _asked_for(root: Path) -> None:
    edit(one(root, META), lambda told: told["args"].update(params=["reader.read_threads=4", "train.epochs=1"]))


def _kv_option(option: str, **stated: Any) -> Change:
    return _kv_told(lambda told: told["options"][option].update(stated))


def _gone(*keys: str) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return change


def _trained_without(*keys: str) -> Change:
    return lambda root: edit(trainings(root)[-1] / "summary.json", _gone(*keys))


def _copied_times(root: Path) -> None:
    """Give a run another's block times under figures of its own, and take the steps of both away."""
    first, second = trainings(root)[-2:]
    start = [json.loads((run / "summary.json").read_text())["start"] for run in (first, second)]
    shift = datetime.fromisoformat(start[1]) - datetime.fromisoformat(start[0])
    for path in first.glob("*per_epoch_stats.json"):
        (second / path.name).write_text(json.dumps(moved(json.loads(path.read_text()), shift)))
    for path in (*first.glob("*_output.json"), *second.glob("*_output.json")):
        path.unlink()


def _printed(line: str) -> Change:
    return lambda root: one(trained(root), "dlio.log").write_text(f"[OUTPUT]\n[METRIC] {line}: 1.5000 (0.1000) \n")


def _in_every_config(section: str, key: str, value: object) -> Change:
    def apply(root: Path) -> None:
        for run in trainings(root):
            edit(config_folder(run) / "config.yaml", lambda told: told["workload"][section].update({key: value}))

    return apply


def _generated(root: Path) -> None:
    told = leaves(root, "datagen")[0] / "dlio_config/config.yaml"
    edit(told, lambda told: told["workload"]["dataset"].update(record_length_bytes_stdev=0))


def _linked(root: Path) -> None:
    (trainings(root)[-1] / "notes.txt").symlink_to("/etc/hostname")


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


def _without_in_ranks(*keys: str) -> Change:
    def apply(root: Path) -> None:
        ranks = sorted(root.rglob("kvcache_results_*.json"))
        if not ranks:
            raise Inapplicable
        for path in ranks:
            edit(path, _gone(*keys))

    return apply


def _of_the_sums(begin: str) -> Change:
    """Delete the figures of such names from the sums of all runs."""

    def apply(root: Path) -> None:
        for path in root.rglob("results.json"):
            rows = json.loads(path.read_text())
            for row in rows if isinstance(rows, list) else [rows]:
                if found := [key for key in row if key.startswith(begin)]:
                    for key in found:
                        del row[key]
                    path.write_text(json.dumps(rows))
                    return
        raise Inapplicable

    return apply


def _with_a_setting(root: Path) -> None:
    config = _first(root, "checkpointing/*/2*/dlio_config/config.yaml")
    edit(config, lambda told: told["workload"].setdefault("reader", {}).update(preloaded=True))


def _without_p95(told: Any) -> None:
    del told["options"]["1"]["aggregated_p95_latency_ms"]


def _without_a_rate(root: Path) -> None:
    edit(one(root, "summary.json"), lambda told: told["metric"]["train_throughput_samples_per_second"].pop())


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
        _kv_summary(root),
        lambda told: told["options"]["1"].update(
            {f"aggregated_{key}": told["options"]["1"][f"aggregated_{key}"] + more / 3}
        ),
    )


def _kv_copied(root: Path) -> None:
    source, target = kv(root), kv(root, "option_1/trial_1")
    shutil.copy(source, target)


def _less_work(told: Any) -> None:
    """Let the devices have read a tenth, in as little time."""
    first, last = (told["cluster_snapshots"][moment]["hosts"][0]["disks"][0] for moment in ("start", "end"))
    for key in ("sectors_read", "time_doing_ios_ms"):
        last[key] = first[key] + (last[key] - first[key]) // 10


def vectors(root: Path) -> list[Path]:
    """The runs of a vector database."""
    found = sorted(path.parent for path in root.rglob("vector_database/**/run/*/statistics.json"))
    if not found:
        raise Inapplicable
    return found


def _of_vector(change: Callable[[Any], Any], name: str = "statistics.json") -> Change:
    return lambda root: edit(next(iter(vectors(root)[0].glob(name))), change)


def _found_nothing(told: Any) -> None:
    told["recall"] |= {"recall_at_k": 0.0, "per_query_recall": [0.0] * 4}


def _small_on_unknown_memory(root: Path) -> None:
    summary("host_memory_GB", value=[])(root)
    summary("num_files_train", value=13_000)(root)
    config("dataset", "num_files_train", value=13_000)(root)


def _odirect(root: Path) -> None:
    config("model", "name", value="retinanet")(root)
    config("reader", "odirect", value=True)(root)


def _v100(root: Path) -> None:
    for run in runs(root):
        (config_folder(run) / "overrides.yaml").write_text("- workload=unet3d_v100\n")


def _a_day_later(root: Path) -> None:
    last = runs(root)[-1]
    last.rename(last.with_name((datetime.strptime(last.name, STAMP) + timedelta(days=1)).strftime(STAMP)))


def _without_two(root: Path) -> None:
    for run in runs(root)[:2]:
        shutil.rmtree(run)


def _without_outputs(folder: Path) -> None:
    for path in calls(folder)[0].glob("*_output.json"):
        path.unlink()


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


def _one_host_alone(folder: Path) -> None:
    processes(8, hosts=2)(folder)
    _able(multi_host=False)(folder)


def _of_checkpoints(change: Callable[[Path], object]) -> Change:
    """Change the folder of a model's checkpoints."""
    return lambda root: change(_first(root, "checkpointing/*"))


META = "*_metadata.json"
_SEPARATE = "dataset.filesystem checkpoint.filesystem"
_ANOTHER_DAY = {"invocation_start_time": "2026-02-01T01:00:00"}
KINDS: tuple[Forgery, ...] = (
    # trees
    _forgery("systems/ is gone", "submission.folders", _each_rerun(lambda org: shutil.rmtree(org / "systems"))),
    _forgery("a foreign folder at the top", "submission.top", lambda root: (root / "notes").mkdir()),
    _forgery("a foreign folder of the organisation", "submission.folders submission.top", _each_rerun(_foreign)),
    _forgery("the organisation has a blank", "submission.name", _each_rerun(lambda o: o.rename(o.with_name("a b")))),
    _forgery("the code's image is gone", "submission.code code.image", lambda root: _remove_code(root)),
    _forgery("a file was added to the code", "code.changed", _tampered_code),
    _forgery("two images in one result", "code.mixed", _two_images),
    _forgery("metadata of checkpoints are gone", "files.checkpoint", _without_metadata),
    _forgery("a leaf names another edition", "edition.differs", changed(META, lambda told: told.update(edition="2.0"))),
    # papers
    _forgery("metadata: []", "papers.missing", written(META, "[]")),
    _forgery("metadata: {}", "papers.missing", written(META, "{}")),
    _forgery("metadata without args", "papers.missing", changed(META, lambda told: told.pop("args"))),
    _forgery("overrides.yaml: []", "papers.missing", written("dlio_config/overrides.yaml", "[]")),
    _forgery("hydra.yaml: {}", "papers.missing", written("dlio_config/hydra.yaml", "{}")),
    _forgery("config.yaml: {}", "papers.missing config.incomplete", written("dlio_config/config.yaml", "{}")),
    _forgery("summary.json: {}", "summary.incomplete checkpoint.differs unapplied", written("summary.json", "{}")),
    _forgery("results.json: []", "results.differ", lambda root: _rewrite(root, "results.json", "[]")),
    _forgery("results.json: {}", "results.differ", lambda root: _rewrite(root, "results.json", "{}")),
    _forgery("called INVALID", "division.differs", changed(META, _put("verification", value="INVALID"))),
    _forgery("called OPEN", "division.differs", changed(META, _put("verification", value="OPEN"))),
    _forgery("run as whatif", "division.differs", changed(META, _put("args", "mode", value="whatif"))),
    _forgery("it failed", "runs.exit", changed(META, lambda told: told.update(exit_status=1))),
    # time
    _forgery("in 2032", "time.year", _to_year(2032)),
    _forgery("in 2016", "time.year", _to_year(2016)),
    _forgery("epochs overlap", "time.order", _epochs_overlap),
    _forgery("checkpoints overlap", "time.order", _checkpoints_overlap),
    _forgery("datagen after the runs", "time.phases", _late("datagen")),
    _forgery("datasize after the runs", "time.phases", _late("datasize")),
    _forgery("the summary begins late", "time.order checkpoint.differs", lambda root: _late_summary(root)),
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
    _forgery("blocks shorter than their steps", "blocks.short",
             _without_steps(_short_blocks, "*per_epoch_stats.json")),
    _forgery("prefetch hides slow first steps", "au.prefetch", _slow_first_steps),
    Forgery("the audit itself fails", frozenset({"audit.failed"}), trainings, _failing_audit),
    _forgery("a model that no edition has", "checkpoint.model", _of_model("gpt-175b")),
    _forgery("8 processes of a larger model", "checkpoint.subset", _of_model("llama3-70b")),
    _forgery("of an edition that never synced", "checkpoint.unsynced", _of_v2),
    # what is gone
    _forgery("a rank's files are gone", "files.ranks", _ranks_gone),
    _forgery("sums of training are forged", "results.differ", _sums("train_throughput_mean_samples_per_second")),
    _forgery("sums of checkpoints are forged", "results.differ", _sums("save_checkpoint_io_mean_GB_per_second")),
    _forgery("sums of a rehearsal are forged", "results.differ", _sums("save_gib_per_second")),
    _forgery("the pdf has 0 bytes", "files.empty", _emptied("systems/*.pdf")),
    _forgery("the description has 0 bytes", "files.empty", _emptied("systems/*.yaml")),
    _forgery("dlio.log has 0 bytes", "files.empty", _emptied("dlio.log")),
    _forgery("stdout has 0 bytes", "files.empty", _emptied("*_run.stdout.log")),
    _forgery("no sidecar of the file system", _SEPARATE, removed("fs_separation.json")),
    _forgery("one file system", _SEPARATE, changed("fs_separation.json", _put("same_filesystem", value=True))),
    # key-value caches
    _forgery("kv: a rank's results are gone", "kv.missing", lambda root: kv(root, "option_2/trial_1").unlink()),
    _forgery("kv: the summary is gone", "kv.missing", lambda root: _kv_summary(root).unlink()),
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
    _forgery("the command had another override", "overrides.differ", _command_override),
    _forgery("another setting was asked for", "overrides.differ", _asked_for),
    _forgery("kv: an option without its p95", "unapplied", _kv_told(_without_p95)),
    _forgery("an epoch has no rate", "epochs.count", _without_a_rate),
    _forgery("no samples/s of epochs", "summary.incomplete",
             _trained_without("metric", "train_throughput_samples_per_second")),
    _forgery("no memory of the hosts", "summary.incomplete", _trained_without("host_memory_GB")),
    _forgery("a call of checkpoints has no figures", "checkpoint.differs",
             lambda root: edit(_first(root, "checkpointing/*/2*/summary.json"), _gone("metric"))),
    _forgery("block times are another run's", "runs.copied", _copied_times),
    _forgery("the log printed another AU", "papers.differ", _printed("Training Accelerator Utilization [AU] (%)")),
    _forgery("a workload file with a setting more", "workload.hash", _in_every_config("workflow", "mine", True)),
    _forgery("datagen made files of one size", "dataset.differs", _generated),
    _forgery("a file is a link", "tree.link", _linked),
    _forgery("sums without their AU", "results.differ", _of_the_sums("train_au_")),
    _forgery("sums of checkpoints without a rate", "results.differ", _of_the_sums("save_")),
    _forgery("a reader with a setting more", "workload.differs", _in_every_config("reader", "preloaded", True)),
    _forgery("checkpoints with a setting more", "checkpoint.settings", _with_a_setting),
    *(_forgery(f"kv: no rank has {'.'.join(keys)}", "kv.missing", _without_in_ranks(*keys)) for keys in _OF_ALL_RANKS),
    _forgery("kv: an option without its rate", "kv.missing",
             _kv_told(_gone("options", "1", "aggregated_read_bandwidth_gbps"))),
    _forgery("kv: a rank without its time", "kv.missing", _kv_rank(_gone("summary", "elapsed_time"))),
    _forgery("kv: the tool was shorter", "time.length", _kv_meta(_put("runtime", value=100.0))),
    _forgery("kv: another folder", "papers.differ", _kv_commands("/mnt/drive/kvcache", "/dev/shm/kvcache")),
    _forgery("kv: an option failed in part", "kv.missing", _kv_option("1", partial_failure=True)),
    _forgery("kv: an option of more ranks", "kv.differs", _kv_option("2", rank_count=9)),
    _forgery("kv: fewer completed", "kv.differs", _kv_rank(_put("requests_completed", value=7))),
    _forgery("kv: the waits are forged", "kv.differs", _kv_waits),
    _forgery("kv: fewer users in one trial", "kv.settings", _kv_first_command("--num-users 200", "--num-users 100")),
    _forgery("kv: users of one option's summary", "kv.settings", _kv_option("3", num_users=7)),
    _forgery("kv: memory in the summary", "kv.settings", _kv_told(lambda told: told.update(gpu_mem_gb=16.0))),
    _forgery("kv: tokens/s of a rank are forged", "kv.differs", _kv_tokens),
    _forgery("kv: more memory", "kv.settings", _kv_commands("--cpu-mem-gb 4", "--cpu-mem-gb 64")),
    _forgery("kv: one trial", "kv.settings", _kv_meta(_put("args", "trials", value=1))),
    _forgery("kv: no pause", "kv.settings", _kv_meta(_put("args", "inter_option_delay", value=0))),
    _forgery("kv: memory served reads", "kv.tiers", _kv_stat("tier_cpu_kv_bytes_read_gb", None)),
    _forgery("kv: tokens are counted twice", "kv.tokens", _kv_stat("storage_tokens_processed", 4)),
    _forgery("kv: a trial is another's copy", "kv.copied", _kv_copied),
    _forgery("kv: the devices read less", "kv.device", _kv_meta(lambda told: _less_work(told))),
    _forgery("kv: another number of ranks", "papers.differ kv.missing", _kv_meta(_put("num_processes", value=4))),
    _forgery("kv: in the folder of another model", "papers.differ", _kv_meta(_put("model", value="tiny-1b"))),
    # papers of training
    _forgery("dlemu ran in DLIO's place", "error:tool.other", logged_by_dlemu),
    # 14,000 files of 146,600,628 bytes are 5 times 382.3 GiB.
    _forgery("memory just below the bound", "warning:dataset.near", summary("host_memory_GB", value=[381.5])),
    _forgery("memory just above the bound", "error:dataset.size", summary("host_memory_GB", value=[384])),
    _forgery("few files on unknown memory", "dataset.steps", _small_on_unknown_memory),
    _forgery("another threshold", "settings.changed", config("metric", "au", value=0.85)),
    _forgery("an override that no division allows", "overrides.unknown", override("++workload.train.seed=7")),
    _forgery("an override that OPEN allows", "overrides.open", override("++workload.reader.data_loader=dali")),
    _forgery("batches read ahead", "overrides.value", config("reader", "prefetch_size", value=16)),
    _forgery("direct I/O of another workload", "overrides.odirect", _odirect),
    _forgery("an accelerator of another edition", "workload.unknown", _v100),
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
    _forgery("another file in systems/", "systems.files",
             _each_rerun(lambda org: (org / "systems/notes.docx").write_text("notes"))),
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
    _forgery("four runs", "error:runs.count", _without_two, "2.0"),
    _forgery("a day between two runs of v2.0", "warning:runs.gap", _a_day_later, "2.0"),
    _forgery("one rank's steps are gone from v2.0", "warning:files.ranks", drop("3_output.json"), "2.0"),
    _forgery("no pdf in v2.0", "warning:systems.pdf", lambda root: _first(root, "systems/*.pdf").unlink(), "2.0"),
    # checkpoints
    *(_forgery(f"checkpoints: {name}", rule, _of_checkpoints(change)) for name, rule, change in (
        ("no fsync", "checkpoint.fsync", setting("checkpoint", "fsync", False)),
        ("fewer layers", "checkpoint.settings", setting("model", "num_layers", 31)),
        ("a pause between them", "checkpoint.settings", setting("checkpoint", "time_between_checkpoints", 60)),
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
        ("no time of remapping", "checkpoint.remap", _able(remap_time_in_seconds=None)),
        ("remapping that is not needed", "checkpoint.remap", _able(remap_time_in_seconds=5)),
        ("no remapping though it is needed", "checkpoint.remap", _able(simultaneous_read=False)),
        ("remapping in no time", "checkpoint.remap", _able(simultaneous_read=False, remap_time_in_seconds=50)),
        ("unknown hosts", "error:checkpoint.simultaneous", _able(multi_host=None)),
        ("text for a flag", "error:checkpoint.simultaneous", _able(simultaneous_write="yes")),
        ("writing alone", "warning:checkpoint.simultaneous",
         _able(simultaneous_write=False, remap_time_in_seconds=5)),
        ("two hosts of a system for one", "error:checkpoint.simultaneous", _one_host_alone),
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
         _without_outputs),
        ("no hydra.yaml", "files.checkpoint_config",
         lambda folder: (calls(folder)[0] / "dlio_config/hydra.yaml").unlink()),
        ("no sums", "files.checkpoint_results", lambda folder: (folder / "results.json").unlink()),
    )),
    # vector databases
    _forgery("vdb: nothing is found", "vdb.recall", _of_vector(_found_nothing)),
    _forgery("vdb: a run is gone", "vdb.count", lambda root: shutil.rmtree(vectors(root)[0])),
)  # fmt: skip


def _remove_code(root: Path) -> None:
    pools = [path.parent for path in root.rglob(".code-hash.json")]
    if not pools:
        raise Inapplicable
    shutil.rmtree(pools[0])


def _rewrite(root: Path, name: str, content: str) -> None:
    found = sorted(root.rglob(name))
    if not found:
        raise Inapplicable
    found[0].write_text(content)


def _late_summary(root: Path) -> None:
    def later(content: Any) -> None:
        content["start"] = (datetime.fromisoformat(content["start"]) + timedelta(seconds=60)).isoformat()

    edit(one(root, "summary.json"), later)


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
