"""`dlemu probe`: checks the target, measures cell by cell, and saves probe.json after each."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from datagen.errors import SpaceError, UserError
from datagen.storage.s3 import SCHEME
from datagen.storage.storage_base import storage_spec
from dlemu.comm.environment import describe_folder, describe_host, existing_folder
from dlemu.config import load, workload_names
from dlemu.config.overrides import take_word
from dlemu.config.published import without_secrets
from dlemu.jobs.probe.object_gets import objects_to_read
from dlemu.jobs.probe.probe_file import fill, probe_file, remove_leftovers
from dlemu.jobs.probe.requests import CellSpec, choose_engine, fio_version, latency_stats, measure_cell, measure_gets
from dlemu.jobs.probe.result import PROBE, Access, Engine, Fed, ProbeAnswer, ProbeCell, ProbeQuestion
from dlemu.metrics.demand import Demand, demand
from dlemu.metrics.steady_state import MOST_ROUNDS, WINDOW, is_steady
from dlemu.report.units import size
from dlemu.results.answer_files import read_answer, save_answer
from dlemu.results.drive import Level, Rate, Rates
from dlemu.results.kinds import kind_requested
from dlemu.results.wording import count
from dlemu.runner.events import Doing, NotSaved, OnEvent, PartMeasured, ignore
from dlemu.runner.run_folder import check_new, new_folder

KIB, MIB = 1 << 10, 1 << 20
FILE_BYTES = 4 << 30
"""Default size of the file that is created in a folder."""
_CONSUMERS = (
    ("unet3d", "h100"),
    ("unet3d", "b200"),
    ("resnet50", "h100"),
    ("cosmoflow", "h100"),
    ("retinanet", "b200"),
)
"""Workloads and accelerators for which the answer says how many accelerators the storage would feed."""
BUCKET_BYTES = 1 << 30
"""Default total size of the objects that are created in a bucket: smaller, as uploads cost time and may cost money."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The cells to measure: every combination of these values."""

    accesses: tuple[Access, ...] = ("randread",)
    sizes: tuple[int, ...] = (4 * KIB, 16 * KIB, 128 * KIB, MIB)
    depths: tuple[int, ...] = (1, 8, 32, 128)
    jobs: tuple[int, ...] = (1,)

    def cells(self) -> tuple[CellSpec, ...]:
        """Return all combinations."""
        return tuple(
            CellSpec(access=access, size_bytes=size, depth=depth, jobs=jobs)
            for access in self.accesses
            for size in self.sizes
            for jobs in self.jobs
            for depth in self.depths
        )


PRESETS = {
    "amax": Grid(sizes=(128 * KIB,), depths=(32,)),
    "micron-6550": Grid(
        sizes=(4 * KIB, 16 * KIB, 128 * KIB, MIB), depths=(1,), jobs=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    ),
}
"""Cells of vendors' documents (docs/vendor-figures.md): fio at 128 KiB, depth 32; transfer sizes by number of workers
with one request in flight each."""
OBJECT_GRID = Grid(sizes=(64 * KIB, MIB, 8 * MIB), depths=(1, 8, 32, 64))
"""Default cells for a bucket: sizes of small samples, of large samples, and of parts of large objects."""


def probe_target(
    target: str,
    *,
    preset: str = "",
    accesses: Sequence[Access] = (),
    sizes: Sequence[int] = (),
    depths: Sequence[int] = (),
    jobs: Sequence[int] = (),
    seconds: float = 2.0,
    engine: str = "auto",
    file_bytes: int | None = None,
    precondition: int = 0,
    steady: bool = False,
    options: Sequence[str] = (),
    folder: str = "",
    on_event: OnEvent = ignore,
) -> tuple[ProbeAnswer, str]:
    """Probe a bucket (s3://...) by `probe_objects`, else by `probe_requests`; values not given are the preset's."""
    bucket = target.startswith(SCHEME)
    base = PRESETS[preset] if preset else OBJECT_GRID if bucket else Grid()
    grid = Grid(
        accesses=tuple(accesses) or base.accesses,
        sizes=tuple(sizes) or base.sizes,
        depths=tuple(depths) or base.depths,
        jobs=tuple(jobs) or base.jobs,
    )
    if bucket:
        if precondition or steady:
            raise UserError("--precondition and --steady are for writes, and a bucket is probed by GET: leave them out")
        return probe_objects(
            target,
            options=options,
            preset=preset,
            grid=grid,
            seconds=seconds,
            total_bytes=BUCKET_BYTES if file_bytes is None else file_bytes,
            folder=folder,
            on_event=on_event,
        )
    return probe_requests(
        target,
        preset=preset,
        grid=grid,
        seconds=seconds,
        engine=engine,
        file_bytes=file_bytes,
        precondition=precondition,
        steady=steady,
        folder=folder,
        on_event=on_event,
    )


def probe_objects(
    target: str,
    *,
    options: Sequence[str] = (),
    preset: str = "",
    grid: Grid = OBJECT_GRID,
    seconds: float = 2.0,
    total_bytes: int = BUCKET_BYTES,
    folder: str = "",
    on_event: OnEvent = ignore,
) -> tuple[ProbeAnswer, str]:
    """Measure GET requests of several sizes and depths on a bucket or an object; return the answer and its folder.

    `target` is an object, or s3://BUCKET[/PREFIX], where objects of `total_bytes` in total are created and removed.
    `options` are overrides of `storage.storage_options`. Raises UserError, DlemuError.
    """
    if any(cell.writes for cell in grid.cells()):
        raise UserError("a bucket is probed by GET: wanted --rw randread or read")
    bucket = target.removeprefix(SCHEME).partition("/")[0]
    if not bucket:
        raise UserError(f"{target} names no bucket: wanted s3://BUCKET or s3://BUCKET/PREFIX")
    foreign = [word for word in options if not word.lstrip("+").startswith("storage.storage_options.")]
    if foreign:
        raise UserError(f"{foreign[0]}: a bucket's probe takes storage.storage_options.NAME=VALUE and no other setting")
    workload = load([*options, "storage.storage_type=s3", f"storage.storage_root={bucket}"])
    spec = storage_spec("s3", root=bucket, options=workload.storage.storage_options)
    folder = _results_folder(folder)
    answer = _new_answer(
        ProbeQuestion(target=target, preset=preset, seconds=seconds, overrides=tuple(without_secrets(options))),
        "s3",
        "",
        target,
    )
    began = time.monotonic()
    min_bytes = max(cell.size_bytes for cell in grid.cells())
    with objects_to_read(spec, target, total_bytes, min_bytes) as objects:
        for cell_spec in grid.cells():
            cell = measure_gets(cell_spec, spec, objects, seconds)
            answer = replace(answer, cells=(*answer.cells, cell), seconds=time.monotonic() - began)
            _save_part(folder, answer)
            on_event(_part_event(cell))
    failed = sum(cell.failed for cell in answer.cells)
    issues = (f"retried {count(failed, 'request')} that had failed",) if failed else ()
    answer = replace(answer, complete=True, feeds=tuple(_accelerators_fed(answer)), issues=issues)
    _save(folder, answer, on_event)
    return answer, folder


def probe_requests(
    target: str,
    *,
    preset: str = "",
    grid: Grid | None = None,
    seconds: float = 2.0,
    engine: str = "auto",
    file_bytes: int | None = None,
    precondition: int = 0,
    steady: bool = False,
    folder: str = "",
    on_event: OnEvent = ignore,
) -> tuple[ProbeAnswer, str]:
    """Measure requests of several sizes and depths on a folder or a file; return the answer and its folder.

    In a folder, a file of `file_bytes` (None: 4 GiB, or more if requests need it) is created and removed; an existing
    file is only read. The file is written `precondition` times before writes are measured; `steady`: repeat until
    steady. Raises UserError, SpaceError, DlemuError.
    """
    grid = grid or PRESETS.get(preset) or Grid()
    cells, target_path = grid.cells(), os.path.abspath(target)
    writes = any(cell.writes for cell in cells)
    if (precondition or steady) and not writes:
        raise UserError("--precondition and --steady are for writes: wanted --rw randwrite or write")
    used, note = choose_engine(engine)
    folder = _results_folder(folder)
    _check_cells(cells, target_path)
    question = ProbeQuestion(target=target_path, preset=preset, seconds=seconds, precondition=precondition)
    leftovers = remove_leftovers(target_path) if os.path.isdir(target_path) else []
    answer = replace(_new_answer(question, used, note, target_path), issues=tuple(leftovers))
    began = time.monotonic()
    least_bytes = max(cell.size_bytes * cell.jobs for cell in cells)
    if file_bytes is not None and file_bytes < least_bytes:
        raise UserError(
            f"a test file of {size(file_bytes)} is too small for the largest request of each job: wanted a --file-size "
            f"of at least {size(least_bytes)}"
        )
    with _open_target(target_path, max(FILE_BYTES, least_bytes) if file_bytes is None else file_bytes) as (
        path,
        size_bytes,
    ):
        _check_size(cells, path, size_bytes)
        _precondition(path, size_bytes, precondition, on_event)
        for cell_spec in cells:
            measure = partial(measure_cell, cell_spec, path, size_bytes, seconds, used)
            cell = _until_steady(measure, on_event) if steady and cell_spec.writes else measure()
            answer = replace(answer, cells=(*answer.cells, cell), seconds=time.monotonic() - began)
            _save_part(folder, answer)
            on_event(_part_event(cell))
    state = [*_state_of_writes(answer.cells)] if writes else []
    answer = replace(answer, complete=True, feeds=tuple(_accelerators_fed(answer)), issues=(*answer.issues, *state))
    _save(folder, answer, on_event)
    return answer, folder


def _precondition(path: str, size_bytes: int, times: int, on_event: OnEvent) -> None:
    """Write a whole file `times` times, announcing the amount first; raises UserError."""
    if not times:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for number in range(1, times + 1):
                whole = f"{size(times * size_bytes)} to precondition {path}"
                on_event(Doing(f"writing {whole}: pass {number} of {times}"))
                fill(descriptor, size_bytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror}; wanted a writable one") from error


def _until_steady(measure: Callable[[], ProbeCell], on_event: OnEvent) -> ProbeCell:
    """Repeat a write until its rate is steady, or as often as SNIA allows; latencies are those of the last round."""
    rates: list[float] = []
    while len(rates) < MOST_ROUNDS and not is_steady(rates):
        cell = measure()
        rates.append(cell.mb_per_second)
        on_event(Doing(f"round {len(rates)} of at most {MOST_ROUNDS}: {cell.mb_per_second:,.1f} MB/s"))
    mean = sum(rates[-WINDOW:]) / WINDOW
    iops = mean * 1e6 / cell.size_bytes
    return replace(cell, mb_per_second=mean, iops=iops, rounds=tuple(rates), steady=is_steady(rates))


def _state_of_writes(cells: Sequence[ProbeCell]) -> Iterator[str]:
    written = [cell for cell in cells if cell.access.endswith("write")]
    if any(cell.steady is None for cell in written):
        yield (
            "it is not known whether writes had reached their steady state, and a fresh SSD writes faster than a used "
            "one: --steady repeats each write until it has, --precondition 2 first writes the whole target twice"
        )
    unsteady = sum(cell.steady is False for cell in written)
    if unsteady:
        yield f"not steady after {MOST_ROUNDS} rounds: {count(unsteady, 'write')}; try --precondition 2"


def _part_event(cell: ProbeCell) -> PartMeasured:
    what = f"{cell.access} {cell.size_bytes / 1024:,.0f} KiB x {cell.in_flight}"
    return PartMeasured(cell, f"{what}: {cell.mb_per_second:,.1f} MB/s, {cell.iops:,.0f} /s")


def probe_workload(
    overrides: Sequence[str],
    *,
    config_dir: str | None = None,
    cached: bool = False,
    readers: tuple[int, ...] = (),
    on_event: OnEvent = ignore,
) -> tuple[ProbeAnswer, str]:
    """Measure a workload's own read pattern with an increasing number of readers; return the answer and its folder."""
    workload = load(overrides, config_dir=config_dir)
    kind = kind_requested(workload)
    measure_pattern = kind.load_job().measure_pattern
    if measure_pattern is None:
        raise UserError(f"{kind.noun} reads no dataset whose reads could be probed: wanted a training workload")
    folder = _results_folder(workload.output.folder or new_folder(workload.results_name, "probe-"), "output.folder")
    question = ProbeQuestion(
        target=workload.dataset.data_folder,
        workload=workload.model.name,
        overrides=tuple(without_secrets(take_word(overrides, "output.folder")[1])),
        seconds=2.0,
    )
    answer = _new_answer(question, "batches", "", workload.dataset.data_folder)
    began = time.monotonic()
    levels: list[Level] = []

    def keep(level: Level) -> None:
        nonlocal answer
        levels.append(level)
        cell = _cell_of_level(level)
        answer = replace(answer, cells=(*answer.cells, cell), seconds=time.monotonic() - began)
        _save_part(folder, answer)
        on_event(_part_event(cell))

    measure_pattern(workload, cached=cached, readers=readers, on_level=keep)
    issues = [
        f"{count(level.readers, 'reader')} had nothing more to read after {level.seconds:.1f} s: make the dataset "
        "larger for a more reliable figure"
        for level in levels
        if level.short
    ]
    need = demand(workload.model.name, workload)
    fed = []
    if need.mb_per_second and (best := answer.best) is not None:
        fed = [_fed_by(need, need.mb_per_second, best.mb_per_second)]
    answer = replace(answer, complete=True, feeds=tuple(fed), issues=tuple(issues))
    _save(folder, answer, on_event)
    return answer, folder


def _save_part(folder: str, answer: ProbeAnswer) -> None:
    """Save what was measured so far; a full disk does not end the measurement, `_save` reports it."""
    with contextlib.suppress(SpaceError):
        save_answer(folder, PROBE, answer)


def _save(folder: str, answer: ProbeAnswer, on_event: OnEvent) -> None:
    try:
        save_answer(folder, PROBE, answer)
    except SpaceError:
        on_event(NotSaved("probe", answer))
        raise


def _cell_of_level(level: Level) -> ProbeCell:
    rows = level.rows
    size = float(rows["app_bytes"].mean())
    return ProbeCell(
        access="randread",
        size_bytes=round(size),
        depth=1,
        jobs=level.readers,
        seconds=level.seconds,
        mb_per_second=level.mb_per_second,
        iops=level.mb_per_second * 1e6 / size,
        latency_ms=latency_stats(rows["end_ns"] - rows["begin_ns"]),
        cpu_seconds_per_gb=level.cpu_seconds_per_gb,
    )


def _new_answer(question: ProbeQuestion, engine: Engine, note: str, target: str) -> ProbeAnswer:
    folder = os.path.dirname(target) if os.path.isfile(target) else target
    local = None if "://" in target else existing_folder(folder)
    return ProbeAnswer(
        complete=False,
        question=question,
        engine=engine,
        engine_note=note,
        host=describe_host(),
        storage=describe_folder(local) if local else None,
        cells=(),
        started_at=datetime.now(UTC).astimezone().isoformat(timespec="milliseconds"),
        extra={"fio": fio_version()} if engine == "fio" else {},
    )


# the target


def _check_cells(cells: Sequence[CellSpec], target: str) -> None:
    """Raise UserError for cells that would destroy data, or that O_DIRECT can't do."""
    for cell in cells:
        if cell.size_bytes % 512 or cell.size_bytes < 512:
            raise UserError(
                f"a request of {cell.size_bytes} bytes can't bypass the page cache: wanted a multiple of 512"
            )
    if not os.path.exists(target):
        raise UserError(f"{target} does not exist: wanted a folder of the storage, or a file to read")
    mode = os.stat(target).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(
            f"{target} is a device, a pipe or a socket: wanted a folder of the storage, or a file to read; fio "
            "measures devices without a file system"
        )
    if os.path.isfile(target) and any(cell.writes for cell in cells):
        raise UserError(
            f"{target} is a file, and a probe that writes would destroy it: name a folder, where it makes one"
        )


@contextlib.contextmanager
def _open_target(target: str, file_bytes: int) -> Iterator[tuple[str, int]]:
    """Context: yield the path to measure and its size; for a folder, that of a file that is removed at exit."""
    if os.path.isfile(target):
        yield target, os.path.getsize(target)
        return
    free = os.statvfs(target)
    free_bytes = free.f_bavail * free.f_frsize
    if free_bytes < 1.1 * file_bytes:  # a margin of 10 % for metadata and other writers
        raise SpaceError(
            f"{target} has {size(free_bytes)} free, the file to read needs {size(file_bytes)}: free some "
            "space, or set a smaller --file-size"
        )
    with probe_file(target, file_bytes) as path:
        yield path, file_bytes


def _check_size(cells: Sequence[CellSpec], path: str, size_bytes: int) -> None:
    min_bytes = max(cell.size_bytes * cell.jobs for cell in cells)
    if size_bytes < min_bytes:
        raise UserError(
            f"{path} has {size_bytes} bytes: wanted at least {min_bytes} for the largest request of each job"
        )
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        raise UserError(
            f"{path} can't be read with O_DIRECT ({error.strerror}): a probe of it would measure memory; name "
            "another folder"
        ) from None


# the accelerators that the measured rate would feed


def _accelerators_fed(answer: ProbeAnswer) -> Iterator[Fed]:
    best = max(
        (cell for cell in answer.cells if cell.access.endswith("read")),
        key=lambda cell: cell.mb_per_second,
        default=None,
    )
    if best is None:
        return
    known = set(workload_names())
    for name, accelerator in _CONSUMERS:
        if name not in known:
            continue
        need = demand(name, load([f"workload={name}", f"accelerator={accelerator}"]))
        if need.mb_per_second:
            yield _fed_by(need, need.mb_per_second, best.mb_per_second)


def _fed_by(need: Demand, mb_per_second_each: float, mb_per_second: float) -> Fed:
    threshold = need.au_threshold_percent
    return Fed(
        workload=need.workload,
        accelerator=need.accelerator,
        mb_per_second_each=mb_per_second_each,
        threshold_percent=threshold,
        accelerators=int(mb_per_second / (threshold / 100 * mb_per_second_each)),
        sample_divisor=need.sample_divisor,
    )


# probe.json


def _results_folder(folder: str, setting: str = "--output") -> str:
    folder = folder or new_folder("probe")
    check_new(folder, setting)
    return folder


def read_probe(folder: str) -> ProbeAnswer | None:
    """Return the probe in a folder, None if there is none; raises UserError for a damaged one."""
    return read_answer(folder, PROBE, ProbeAnswer)


def read_rates(folder: str) -> Rates:
    """Return the rates of a probe: random reads as of training, sequential writes as of checkpoints, are preferred.

    Raises UserError for a probe of a workload's own reads.
    """
    probe = read_probe(folder)
    assert probe is not None  # the folder is known by its file
    if probe.question.workload:
        raise UserError(
            f"{folder} is a probe of the reads of {probe.question.workload}: wanted one of requests by size and depth "
            "(`dlemu probe FOLDER`); `dlemu predict` alone probes a workload's own reads"
        )

    def first_of(*accesses: str) -> tuple[Rate, ...]:
        measured = [cell for cell in probe.cells if min(cell.iops, cell.in_flight, cell.size_bytes) > 0]
        access = next((name for name in accesses if any(cell.access == name for cell in measured)), "")
        return tuple(
            Rate(size_bytes=cell.size_bytes, depth=cell.in_flight, per_second=cell.iops)
            for cell in measured
            if cell.access == access
        )

    reads, writes = first_of("randread", "read"), first_of("write", "randwrite")
    if not reads and not writes:
        raise UserError(f"{folder} has no reads and no writes: wanted a probe with --rw randread, read or write")
    return Rates(f"a probe of {probe.question.target}", reads, writes)
