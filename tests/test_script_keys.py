"""Keys that validation and benchmarks read by name are there: in a result's type, a table's columns, or another's JSON.

What scripts read as attributes mypy checks; a key in a string that no result has any more shows only when they run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import msgspec

from dlemu.checkpoints.io_rows import IO_COLUMNS
from dlemu.jobs.training.steplog import STEP_COLUMNS
from dlemu.results.kinds import kinds
from dlemu.results.schemas import kinds_by_command, types_in
from tests.parts import needs_all_parts

SCRIPTS = Path(__file__).parent.parent / "scripts"
FOREIGN = {
    *("at_seconds", "gb", "mb_per_second_after", "ms_per_sample", "others_ms_per_sample"),  # numbers of findings
    *("pattern", "times"),
    *("num_files_train", "num_samples_per_file"),  # settings
    *("bw_bytes", "lat_ns"),  # fio
    *("block1", "end", "load", "load_checkpoint_io_mean_GB_per_second", "metric"),  # DLIO
    *("save_checkpoint_io_mean_GB_per_second", "start"),
    *("cache_stats", "summary", "tier_storage_kv_bytes_read_gb", "tier_storage_read_bandwidth_gbps"),  # kv-cache.py
    *("epoch_seconds", "first_batch_seconds", "pair", "prefetch_size", "read_threads", "result"),  # published_pairs.csv
    *("cpu_seconds", "gb_per_second", "memory_mb", "plan_seconds", "size"),  # the plain programs beside dlemu
    *("bert_pytorch", "hdf5", "retinanet", "unet3d", "obstore", "signed"),  # cases
    *("embedding", "records_0", "x", "y"),  # datasets
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "DLEMU_RECORD", "PATH"),  # the environment
}
"""What scripts read by name that is none of a result's keys."""


def keys_read(source: str) -> Iterator[str]:
    """Yield the strings by which a module subscripts anything, or calls its `get`."""
    for node in ast.walk(ast.parse(source)):
        key = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            key = next(iter(node.args), None)
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


@cache
def declared() -> set[str]:
    known = {*STEP_COLUMNS, *IO_COLUMNS}
    for kind in kinds():
        known.update(getattr(kind.load_job().job, "columns", ()) if kind.is_job else ())
    for kind in kinds_by_command().values():
        for table in types_in(kind.load().answer_type):
            is_struct = issubclass(table, msgspec.Struct)
            known.update(field.name for field in (msgspec.structs.fields(table) if is_struct else fields(table)))
    return known


@needs_all_parts
def test_each_key_that_a_script_reads_by_name_is_there() -> None:
    read = {
        (str(path.relative_to(SCRIPTS)), key)
        for folder in ("validation", "benchmarks")
        for path in (SCRIPTS / folder).rglob("*.py")
        for key in keys_read(path.read_text())
    }
    assert ("validation/bed.py", "app_bytes") in read, "scripts read what they did"
    assert sorted(one for one in read if one[1] not in declared() | FOREIGN) == []
    assert sorted(FOREIGN - {key for _, key in read}) == [], "nothing reads these any more"


def test_a_key_that_no_result_has_is_found() -> None:
    source = 'done.summary["metrics"].get("no_such_key"), rows["wait_ns"], done.summary["au_percnt"]["mean"]'
    assert set(keys_read(source)) - declared() == {"no_such_key", "au_percnt"}
