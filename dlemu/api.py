"""The Python API, for scripts and notebooks: each function does what its command does, and returns a typed result.

Functions print nothing: they report progress to `on_progress`, and an exception raised there ends the run. A verdict
of FAIL is a result. A run that breaks raises RunFailedError, with the saved part of the result in `kept`; Ctrl-C raises
KeyboardInterrupt. Ranks are forked from the calling process, so call these functions in its main thread.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from datagen.errors import UserError
from datagen.registry import installed_part
from datagen.regular import open_standard_streams
from datagen.withheld import check_encoding
from dlemu.config import load
from dlemu.config.overrides import given_keys, literal
from dlemu.config.schema import Workload
from dlemu.ranks import Interrupted, detect_launcher
from dlemu.results.kinds import kind_of_command, kind_to_run, read_result
from dlemu.runner.events import DatasetMade, Event, NotSaved, OnEvent, Saved, ignore, to_all

if TYPE_CHECKING:  # functions import their kind of job when called, as any kind may be missing
    from dlemu.jobs.checkpoint.analyse import CheckpointRun
    from dlemu.jobs.checkpoint.prediction import CheckpointPrediction
    from dlemu.jobs.probe.result import Access, ProbeAnswer
    from dlemu.jobs.training.prediction.prediction import Prediction
    from dlemu.jobs.training.result import Run
    from dlemu.studies.answers import Comparison, SizeAnswer, SweepAnswer
    from dlemu.studies.prerequisites import SizingEvent

    Result = (
        Run | CheckpointRun | SizeAnswer | SweepAnswer | Comparison | Prediction | CheckpointPrediction | ProbeAnswer
    )

Source = Workload | Sequence[str] | Mapping[str, object]
"""What to run: a Workload, or overrides as strings ("ranks=4") or by key ({"ranks": 4}); keywords override these."""
Folder = str | os.PathLike[str]


def train(
    source: Source = (),
    *,
    make: bool = False,
    config_dir: str | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **settings: object,
) -> Run:
    """Train with emulated accelerators: `dlemu train`.

    report.html is not written: `dlemu report` does that.

    Args:
        source: a Workload, or overrides; `settings` are further ones: `workload="unet3d"`, `**{"train.epochs": 2}`.
        make: first make the missing files of the dataset, which gets as many files as the ranks need unless their
            number is set.
        config_dir: a folder with workload/NAME.yaml.
        on_progress: called with each event, one to four times a second, in the caller's thread.

    Raises UserError for unusable settings, dataset or host, and RunFailedError for a run that ended before its last
    step.
    """
    workload = _workload(source, settings, config_dir)
    kind = kind_to_run(workload)
    if kind.command != "train":
        raise UserError(f"the workload is for {kind.noun}: use `dlemu {kind.command}`, or set workflow.train=true")
    if workload.workflow.generate_data and not workload.workflow.train:
        raise UserError("the workload only makes its dataset: call dlemu.datagen, or set workflow.train=true")
    is_workload = isinstance(source, Workload)
    size_is_given = is_workload or "dataset.num_files_train" in given_keys(overrides_of(source, settings))
    return cast("Run", _run("train", workload, on_progress, make=make, size_is_given=size_is_given))


def checkpoint(
    source: Source = (),
    *,
    config_dir: str | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **settings: object,
) -> CheckpointRun:
    """Write and read a model's checkpoints: `dlemu checkpoint`. Arguments are those of `train`.

    `.summary` of the result has every metric, `.rows` the measurements of each rank and file. Raises UserError,
    RunFailedError.
    """
    return cast("CheckpointRun", _run("checkpoint", _workload(source, settings, config_dir), on_progress))


def datagen(
    source: Source = (),
    *,
    config_dir: str | None = None,
    fsync: bool = False,
    on_progress: Callable[[Event], None] | None = None,
    **settings: object,
) -> DatasetMade:
    """Make the missing files of a workload's dataset: `dlemu datagen`. Arguments are those of `train`.

    `fsync` syncs each file to the device before the file gets its final name. Raises UserError, RunFailedError.
    """
    return _make(_workload(source, settings, config_dir), on_progress, fsync=fsync)


def size(
    source: Sequence[str] | Mapping[str, object] = (),
    *,
    config_dir: str | None = None,
    at_least: int | None = None,
    most: int = 4096,
    trial_seconds: float = 120.0,
    make: bool = False,
    on_progress: Callable[[SizingEvent], None] | None = None,
    **settings: object,
) -> SizeAnswer:
    """Find the most accelerators that a storage keeps busy: `dlemu size`.

    See `dlemu.studies.size.find_size.size` for arguments; `make` first makes missing files, with a rank for each core.
    """
    from dlemu.studies.size import find_size

    with _forking_call("size"):
        return find_size.size(
            overrides_of(source, settings),
            config_dir=config_dir,
            at_least=at_least,
            most=most,
            trial_seconds=trial_seconds,
            make=_make_dataset if make else None,
            on_event=on_progress or ignore,
        )


def predict(
    source: Source = (),
    *,
    from_folder: Folder | Run | CheckpointRun | None = None,
    mb_per_second: float | None = None,
    drive: Folder | None = None,
    hosts: int | None = None,
    host_cores: int | None = None,
    others_mb_per_second: float = 0.0,
    most: int | None = None,
    restart_minutes: float = 5.0,
    make: bool = False,
    config_dir: str | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **settings: object,
) -> Any:
    """Predict how busy a storage would keep accelerators: `dlemu predict`.

    Returns a Prediction; a CheckpointPrediction for a checkpoint workload; a NeedsAnswer if no storage is specified.
    See `dlemu.runner.prediction_request.PredictionRequest` for arguments. With `ranks` set it predicts for that number,
    otherwise for the largest number that passes. `from_folder` is a run, or the folder of one (DLIO's too); `make`
    makes the dataset before the probe.
    """
    from dlemu.runner.prediction_request import PredictionRequest
    from dlemu.studies import predict

    request = PredictionRequest(
        from_folder=_folder(from_folder),
        mb_per_second=mb_per_second,
        drive=_folder(drive),
        hosts=hosts,
        host_cores=host_cores,
        others_mb_per_second=others_mb_per_second,
        most=most,
        restart_minutes=restart_minutes,
        config_dir=config_dir,
        make=_make_dataset if make else None,
        read_foreign=installed_part("dlemu.foreign", "run"),
        on_event=on_progress or ignore,
    )
    with _forking_call("predict"):
        return predict.predict(_source(source, settings), request)[0]


def probe(
    target: Folder,
    *,
    accesses: Sequence[Access] = (),
    sizes: Sequence[int] = (),
    depths: Sequence[int] = (),
    jobs: Sequence[int] = (),
    seconds: float = 2.0,
    engine: str = "auto",
    file_bytes: int | None = None,
    steady: bool = False,
    folder: str = "",
    on_progress: Callable[[Event], None] | None = None,
) -> ProbeAnswer:
    """Measure what a storage can do: `dlemu probe`.

    `target` is a folder or a file; `accesses` ("randread"), `sizes` (bytes), `depths` and `jobs` select the requests.
    Raises UserError, DlemuError.
    """
    from dlemu.jobs.probe import run

    path = os.fspath(target)
    check_encoding([path, folder])
    with _forking_call("probe"):
        return run.probe_target(
            path,
            accesses=accesses,
            sizes=sizes,
            depths=depths,
            jobs=jobs,
            seconds=seconds,
            engine=engine,
            file_bytes=file_bytes,
            steady=steady,
            folder=folder,
            on_event=on_progress or ignore,
        )[0]


def sweep(
    source: Sequence[str] | Mapping[str, object] = (),
    *,
    config_dir: str | None = None,
    on_progress: Callable[[SizingEvent], None] | None = None,
    **settings: object,
) -> SweepAnswer:
    """Run once for each value in a list: `dlemu sweep`, as in `ranks=[1, 2, 4]` or `drives=["/a", "/b"]`.

    Each point of a checkpoint workload writes into a folder of its own, which is removed afterwards. The answer notes a
    point that fails, and the other points run. Raises UserError for wrong settings of any point.
    """
    from dlemu.studies.sweep import run

    with _forking_call("sweep"):
        values = overrides_of(source, settings, several=True)
        return run.sweep(values, config_dir=config_dir, on_event=on_progress or ignore)


def compare(
    a: Folder | Run | CheckpointRun,
    b: Folder | Run | CheckpointRun | None = None,
) -> Comparison:
    """Compare A with B: `dlemu compare`. Each is a run, or the folder of a run (DLIO's too), a sweep or a search.

    Both are of the same kind of job. Without `b`, `a` is a sweep over two drives, and the drives are compared. Raises
    UserError for results that can't be compared.
    """
    from dlemu.studies.compare import compare_sides
    from dlemu.studies.compare.sides import read_sides

    folders = [folder for folder in (_folder(a), _folder(b)) if folder is not None]
    return compare_sides.compare(*read_sides(folders, installed_part("dlemu.foreign", "side")))


def load_result(folder: Folder) -> Result:
    """Return the result in a folder: a run with all its metrics recomputed, a search, a sweep, a comparison, a
    prediction or a probe; for an installed kind of job, the result that its reader returns.

    Raises UserError for a folder without a result, and for a damaged result.
    """
    return cast("Result", read_result(os.fspath(folder)))


def _folder(result: Folder | Run | CheckpointRun | None) -> str | None:
    if result is None:
        return None
    return os.fspath(result) if isinstance(result, str | os.PathLike) else result.folder


def _make_dataset(workload: Workload) -> None:
    """Make the missing files of a workload's dataset, with a rank for each core."""
    _make(replace(workload, ranks=len(os.sched_getaffinity(0))), None, fsync=True)


def _source(source: Source, settings: Mapping[str, object]) -> Workload | list[str]:
    return source if isinstance(source, Workload) and not settings else overrides_of(source, settings)


def _workload(source: Source, settings: Mapping[str, object], config_dir: str | None) -> Workload:
    selected = _source(source, settings)
    return selected if isinstance(selected, Workload) else load(selected, config_dir=config_dir)


def overrides_of(source: Source, settings: Mapping[str, object], *, several: bool = False) -> list[str]:
    """Return overrides as on the command line, KEY=VALUE; if `several`, a list gives a key several values: KEY=A,B."""
    if isinstance(source, Workload):
        raise UserError(
            f"a Workload was given where settings are wanted ({', '.join(settings) or 'none were given'}): put all of "
            "them into the overrides that the Workload is loaded from"
        )
    if isinstance(source, str):
        raise UserError(f"{source!r} is a string: wanted a list of overrides, as in [{source!r}], or keywords")
    overrides = [] if isinstance(source, Mapping) else list(source)
    values = {**source, **settings} if isinstance(source, Mapping) else settings
    for key, value in values.items():
        choices: Sequence[object] = value if several and isinstance(value, (list, tuple, range)) else [value]
        overrides.append(f"{key}=" + ",".join(map(_value_text, choices)))
    return overrides


def _value_text(value: object) -> str:
    if value is None:
        return "null"
    to_python: Callable[[], Any] | None = getattr(value, "item", None)  # of a NumPy scalar
    return literal(to_python() if callable(to_python) else value)


def _run(
    command: str,
    workload: Workload,
    on_progress: Callable[[Event], None] | None,
    *,
    make: bool = False,
    size_is_given: bool = False,
) -> Any:
    """Run a job on ranks of this host, and return its measured run, of the type that its kind declares."""
    from dlemu.dlio.export import export_beside
    from dlemu.report.progress import log_writer
    from dlemu.runner.job import JobRequest, run_job

    allow_any = (lambda *_: None) if make else None
    request = JobRequest(load=lambda: workload, allow_making=allow_any, size_is_given=size_is_given, keeps_run=True)
    with _forking_call(command, starts_ranks=True), _EventRelay(on_progress or ignore) as relay:
        on_event = to_all(relay, export_beside, log_writer(f"dlemu.{command}(...)"))
        result = run_job(request, on_event, kind_of_command(command).load_job().job, relay.drain)
    assert result is not None  # this process leads the ranks, and the job does more than generate data
    return result.run


def _make(workload: Workload, on_progress: Callable[[Event], None] | None, *, fsync: bool) -> DatasetMade:
    """Make the missing files of a dataset with ranks of this host."""
    from dlemu.jobs.training.preflight import why_too_small
    from dlemu.runner import datasets
    from dlemu.runner.job import JobRequest

    with _forking_call("datagen", starts_ranks=True), _EventRelay(on_progress or ignore) as relay:
        request = JobRequest(load=lambda: workload)
        made = datasets.run_datagen(request, relay, warning_for=why_too_small, fsync=fsync, on_tick=relay.drain)
    assert made is not None  # this process leads the ranks
    return made


class _EventRelay:
    """Delivers events to `on_event` in the calling process; rank 0, a fork of this process, sends them by a socket."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event, self._pid = on_event, os.getpid()

    def __enter__(self) -> _EventRelay:
        self._receiver, self._sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._receiver, self._sender:
            if kind is None:
                self.drain()

    def __call__(self, event: Event) -> None:
        """Deliver an event; rank 0 drops it if hundreds are waiting for a busy caller."""
        if isinstance(event, Saved | NotSaved):  # the caller gets the result, or an error with advice
            return
        if os.getpid() == self._pid:
            self.drain()
            self._on_event(event)
            return
        with contextlib.suppress(OSError):
            self._sender.send(pickle.dumps(event), socket.MSG_DONTWAIT)

    def drain(self) -> None:
        """Deliver the events that rank 0 has sent."""
        while select.select([self._receiver], [], [], 0)[0]:
            self._on_event(pickle.loads(self._receiver.recv(1 << 20)))


@contextlib.contextmanager
def _forking_call(name: str, *, starts_ranks: bool = False) -> Iterator[None]:
    """Context of a call of `dlemu.NAME`, which forks: Ctrl-C becomes a KeyboardInterrupt that says what was saved.

    Raises UserError in a thread other than the main one; if the call `starts_ranks`, also in a launcher's process.
    """
    from dlemu.runner.ranks import RunFailedError

    if starts_ranks and detect_launcher() != "none":
        raise UserError(
            f"dlemu.{name} was called in a process of mpirun, srun or torchrun, but starts its ranks itself, on this "
            f"host: run `dlemu {name}` under the launcher instead, and read its folder with dlemu.load_result"
        )
    if threading.current_thread() is not threading.main_thread():
        raise UserError(
            f"dlemu.{name} was called in a thread, but forks processes and takes signals: wanted a call in the main "
            f"thread; or run `dlemu {name}` as a command, and read its folder with dlemu.load_result"
        )
    open_standard_streams()  # a service may have closed them
    try:
        yield
    except (RunFailedError, Interrupted) as error:
        if error.exit_status != 128 + signal.SIGINT:
            raise
        raise KeyboardInterrupt(str(error)) from None
