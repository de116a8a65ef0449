"""What holds for all tests.

TensorFlow's threads do not survive a fork, so tests that run it do so in a process of their own, as ranks do.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import HealthCheck, settings

from tests.children import children, fail_if_any_is_left
from tests.object_stores import keys as keys
from tests.object_stores import s3 as s3

# A shared machine may be slow for a moment, so examples have no time limit. They are the same in each run: a change is
# not refused for what it has not touched. To look for others: pytest --hypothesis-profile=explore
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("any_machine", settings.get_profile("explore"), derandomize=True)
settings.load_profile("any_machine")

CHILD_PASSED, CHILD_FAILED = 0, 1


def pytest_configure(config: pytest.Config) -> None:
    """Set up what the processes that tests start inherit.

    What they leave in the folder for temporary files goes with it at the end: torchrun, for one, leaves its logs
    there. pytest keeps its own folders beside it.

    They hear Ctrl-C: a shell that starts something in the background has it ignored. And they keep the modules that
    they compile, whatever the environment says: without, each of a thousand commands compiles dlemu again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        folder = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tests-")  # short: there are sockets in it
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    tempfile.tempdir = None  # read TMPDIR again
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # dlemu sets it too: else each start makes threads for nothing
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have each process begin with slow ones: what is left for the end, when some have nothing more to run, is short.

    `--dist worksteal` cuts the list into equal parts, one for each process, who takes from the end of another's when
    it is through with its own. Neighbours stay together, as they share what is set up for them.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    parts = zip(_parts(slow, processes), _parts(quick, processes), strict=True)
    items[:] = chain.from_iterable(first + then for first, then in parts)


def pytest_collection_finish() -> None:
    """Leave what was collected out of the garbage collector's rounds: a sixth of the tests' own time went into them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 10)  # of 700, 10, 10: rounds are as long as what the frozen modules make is large


def _parts(items: list[pytest.Item], count: int) -> list[list[pytest.Item]]:
    return [items[number * len(items) // count : (number + 1) * len(items) // count] for number in range(count)]


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    """Each test leaves no process behind, whatever it is about."""
    before = children()
    yield
    fail_if_any_is_left(before)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not _runs_tensorflow(pyfuncitem):
        return None
    _ = importlib.import_module("dlemu.loaders.tensorflow").Loader  # TensorFlow, once for all: it starts no thread yet
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _run(pyfuncitem, arguments, write_end)
    os.close(write_end)
    try:
        with open(read_end, errors="replace") as told:
            report = told.read()
        _, status = os.waitpid(child, 0)
    except BaseException:  # the test's time is up
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    assert status == 0, f"in a process of its own (wait status {status}):\n{report}"
    return True


def _runs_tensorflow(item: pytest.Function) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return item.get_closest_marker("tensorflow") is not None or parameters.get("name") == "tensorflow"


def _run(item: pytest.Function, arguments: dict[str, object], write_end: int) -> None:
    """Run the test and end this process, whatever comes of it."""
    status = CHILD_FAILED
    try:
        item.obj(**arguments)
        status = CHILD_PASSED
    except BaseException:
        os.write(write_end, traceback.format_exc()[-30_000:].encode())
    finally:
        os._exit(status)
