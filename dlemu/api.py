"""dlemu for scripts and notebooks: each function does what the command of its name does, and returns a typed result.

Nothing is printed. Progress is reported to `on_progress`; an exception that it raises ends the run. A verdict "fail"
is a result; a run that fails raises RunFailedError, whose `kept` says what was saved; Ctrl-C raises KeyboardInterrupt.
Ranks are forked from the caller's process, so call it from the main thread.
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
from datagen.withheld import check_letters
from dlemu.config import load
from dlemu.config.overrides import given_keys, override
from dlemu.config.schema import Workload
from dlemu.ranks import Interrupted, detect_launcher
from dlemu.results.kinds import kind_of_command, kind_to_run, read_result
from dlemu.runner.events import DatasetMade, Event, NotSaved, OnEvent, Saved, ignore, to_all

if TYPE_CHECKING:  # each function imports what it needs, so that any kind of job may be missing
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
"""What to run: a Workload; or overrides as strings ("ranks=4") or by key ({"ranks": 4}), before those in keywords."""
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
        source: a Workload, or overrides; `settings` are more of them: `workload="unet3d"`, `**{"train.epochs": 2}`.
        make: make the dataset first, or the files of it that are missing: as many as the ranks need, unless their
            number is set.
        config_dir: a folder with workload/NAME.yaml.
        on_progress: is called with each event, one to four times a second, in the caller's thread.

    Raises UserError for what is wrong with settings, dataset or host, RunFailedError for a run that ended before its
    last step.
    """
    workload = _workload(source, settings, config_dir)
    kind = kind_to_run(workload)
    if kind.command != "train":
        raise UserError(f"the workload is for {kind.noun}: use `dlemu {kind.command}`, or set workflow.train=true")
    if workload.workflow.generate_data and not workload.workflow.train:
        raise UserError("the workload only makes its dataset: call dlemu.datagen, or set workflow.train=true")
    size_is_given = isinstance(source, Workload) or "dataset.num_files_train" in given_keys(
        overrides_of(source, settings)
    )
    return cast("Run", _run("train", workload, on_progress, make=make, size_is_given=size_is_given))


def checkpoint(
    source: Source = (),
    *,
    config_dir: str | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **settings: object,
) -> CheckpointRun:
    """Write and read a model's checkpoints: `dlemu checkpoint`; arguments as of `train`.

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
    """Make a workload's dataset, or the files of it that are missing: `dlemu datagen`; arguments as of `train`.

    `fsync` syncs each file to the device before it is renamed to its final name. Raises UserError, RunFailedError.
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

    Arguments as of `dlemu.studies.size.find_size.size`; `make` first makes missing files, with a rank for each core.
    """
    from dlemu.studies.size import find_size

    return find_size.size(
        overrides_of(source, settings),
        config_dir=config_dir,
        at_least=at_least,
        most=most,
        trial_seconds=trial_seconds,
        make=make_dataset if make else None,
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
    """Predict how busy a storage would keep accelerators: `dlemu predict`; returns a Prediction.

    For a checkpoint workload, a CheckpointPrediction; where nothing says which storage, a NeedsAnswer.

    Arguments as of `dlemu.runner.prediction_request.PredictionRequest`. With `ranks` it predicts for that many, without
    for the largest number that passes. `from_folder` is a run or its folder (DLIO's too); `make` makes the dataset
    before it is probed.
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
        make=make_dataset if make else None,
        read_foreign=installed_part("dlemu.foreign", "run"),
        on_event=on_progress or ignore,
    )
    with main_thread("predict"):
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

    `target` is a folder or a file; `accesses` ("randread"), `sizes` in bytes, `depths` and `jobs` select the requests.
    Raises UserError, DlemuError.
    """
    from dlemu.jobs.probe import run

    place = os.fspath(target)
    check_letters([place, folder])
    with main_thread("probe"):
        return run.probe_target(
            place,
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
    """Run over several values: `dlemu sweep`. Lists hold the values: `ranks=[1, 2, 4]`, `drives=["/a", "/b"]`.

    Each point of a checkpoint workload has its own folder for the checkpoints, which is removed afterwards. A point
    that fails is noted in the answer, and the others go on. Raises UserError for wrong settings of any point.
    """
    from dlemu.studies.sweep import run

    values = overrides_of(source, settings, several=True)
    return run.sweep(values, config_dir=config_dir, on_event=on_progress or ignore)


def compare(
    a: Folder | Run | CheckpointRun,
    b: Folder | Run | CheckpointRun | None = None,
) -> Comparison:
    """Compare A with B: `dlemu compare`. Each is a run, or the folder of a run (DLIO's too), a sweep or a search.

    Both must be of the same kind of job. Without `b`, `a` is a sweep over two drives, and these are compared.

    Raises UserError for what can't be compared.
    """
    from dlemu.studies.compare import compare_sides
    from dlemu.studies.compare.sides import read_sides

    folders = [folder for folder in (_folder(a), _folder(b)) if folder is not None]
    return compare_sides.compare(*read_sides(folders, installed_part("dlemu.foreign", "side")))


def load_result(folder: Folder) -> Result:
    """Return the result in a folder: a training or checkpoint run, with all metrics recomputed, a search, a sweep,
    a comparison, a prediction, a probe; or what an installed kind's reader returns.

    Raises UserError for a folder without a result, or a damaged one.
    """
    result: Result = read_result(os.fspath(folder))
    return result


def _folder(result: Folder | Run | CheckpointRun | None) -> str | None:
    if result is None:
        return None
    return os.fspath(result) if isinstance(result, str | os.PathLike) else result.folder


def make_dataset(workload: Workload) -> None:
    """Make the missing files of a workload's dataset, with a rank for each core."""
    _make(replace(workload, ranks=len(os.sched_getaffinity(0))), None, fsync=True)


def _source(source: Source, settings: Mapping[str, object]) -> Workload | list[str]:
    return source if isinstance(source, Workload) and not settings else overrides_of(source, settings)


def _workload(source: Source, settings: Mapping[str, object], config_dir: str | None) -> Workload:
    given = _source(source, settings)
    return given if isinstance(given, Workload) else load(given, config_dir=config_dir)


def overrides_of(source: Source, settings: Mapping[str, object], *, several: bool = False) -> list[str]:
    """Return overrides in the form of the command line, KEY=VALUE."""
    if isinstance(source, Workload):
        raise UserError(
            f"a Workload was given where settings are wanted ({', '.join(settings) or 'none were given'}): put all of "
            "them into the overrides that the Workload is loaded from"
        )
    if isinstance(source, str):
        raise UserError(f"{source!r} is a string: wanted a list of overrides, as in [{source!r}], or keywords")
    texts = [] if isinstance(source, Mapping) else list(source)
    given = {**source, **settings} if isinstance(source, Mapping) else settings
    return [*texts, *(_override_text(key, value, several=several) for key, value in given.items())]


def _override_text(key: str, value: object, *, several: bool) -> str:
    if several and isinstance(value, (list, tuple, range)):
        return f"{key}=" + ",".join(_override_text("", item, several=False).removeprefix("=") for item in value)
    if value is None:
        return f"{key}=null"
    item: Callable[[], Any] | None = getattr(value, "item", None)  # a NumPy scalar
    return override(key.split("."), item() if callable(item) else value)


def _run(
    command: str,
    workload: Workload,
    on_progress: Callable[[Event], None] | None,
    *,
    make: bool = False,
    size_is_given: bool = False,
) -> Any:
    """Run a job on ranks of this host; return the run, typed as its kind has it."""
    from dlemu.dlio.export import export_beside
    from dlemu.report.progress import log_writer
    from dlemu.runner.job import JobRequest, run_alone

    allow = (lambda *_: None) if make else None
    request = JobRequest(load=lambda: workload, allow_making=allow, size_is_given=size_is_given, keeps_run=True)
    with main_thread(command, starts_ranks=True), _Caller(on_progress or ignore) as caller:
        on_event = to_all(caller, export_beside, log_writer(f"dlemu.{command}(...)"))
        result = run_alone(request, on_event, kind_of_command(command).load_job().job, caller.look)
    assert result is not None  # this process leads, and the workload asks for more than its data
    return result.run


def _make(workload: Workload, on_progress: Callable[[Event], None] | None, *, fsync: bool) -> DatasetMade:
    """Make what is missing of a dataset with ranks of this host."""
    from dlemu.jobs.training.preflight import too_small
    from dlemu.runner import datasets
    from dlemu.runner.job import JobRequest

    with main_thread("datagen", starts_ranks=True), _Caller(on_progress or ignore) as caller:
        request = JobRequest(load=lambda: workload)
        made = datasets.make(request, caller, caution=too_small, fsync=fsync, on_look=caller.look)
    assert made is not None  # this process leads
    return made


class _Caller:
    """Passes events to the caller, in its own process: rank 0, which reports most of them, is a fork of that."""

    def __init__(self, tell: OnEvent) -> None:
        self._tell, self._process = tell, os.getpid()

    def __enter__(self) -> _Caller:
        self._here, self._there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._here, self._there:
            if kind is None:
                self.look()

    def __call__(self, event: Event) -> None:
        """Pass on an event; a rank drops it when the caller is so busy that hundreds wait."""
        if isinstance(event, Saved | NotSaved):  # the result has it, or the error says what to do
            return
        if os.getpid() == self._process:
            self.look()
            self._tell(event)
            return
        with contextlib.suppress(OSError):
            self._there.send(pickle.dumps(event), socket.MSG_DONTWAIT)

    def look(self) -> None:
        """Tell the caller what rank 0 has reported meanwhile."""
        while select.select([self._here], [], [], 0)[0]:
            self._tell(pickle.loads(self._here.recv(1 << 20)))


@contextlib.contextmanager
def main_thread(name: str, *, starts_ranks: bool = False) -> Iterator[None]:
    """Context for what forks: refuse it where it can't fork, and make Ctrl-C a KeyboardInterrupt that says what was
    kept. Raises UserError."""
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
    except RunFailedError as error:
        if error.exit_status != 128 + signal.SIGINT:
            raise
        raise KeyboardInterrupt(str(error)) from None
    except Interrupted as stop:
        if stop.signal_number != signal.SIGINT:
            raise
        raise KeyboardInterrupt(str(stop)) from None
