"""Configuration and hooks of all tests.

TensorFlow's threads do not survive a fork. So tests that use it run in a child process of their own, as ranks do.
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

# Examples have no time limit, because a shared machine may be slow for a moment. They are the same in each run, so that
# a change can't fail by what it has not touched. To try other examples: pytest --hypothesis-profile=explore
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("any_machine", settings.get_profile("explore"), derandomize=True)
settings.load_profile("any_machine")

CHILD_PASSED, CHILD_FAILED = 0, 1


def pytest_configure(config: pytest.Config) -> None:
    """Set up the environment that the processes started by tests inherit.

    Their temporary files, such as torchrun's logs, are in a folder that is removed at the end. pytest's own folders are
    elsewhere. Ctrl-C is not ignored, as it is in programs that a shell starts in the background. Compiled modules are
    kept, whatever the environment says, because otherwise each of a thousand commands would compile dlemu again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        folder = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tests-")  # short, because paths of sockets are
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    tempfile.tempdir = None  # read TMPDIR again
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as dlemu: otherwise, each start makes useless threads
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each process begin with slow tests, so that the last tests to end are short.

    `--dist worksteal` splits the list into equal parts, one per process. A process that has finished its part takes
    tests from the end of another's. Neighbours stay together, because they share fixtures.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    parts = zip(_parts(slow, processes), _parts(quick, processes), strict=True)
    items[:] = chain.from_iterable(slow_part + quick_part for slow_part, quick_part in parts)


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, which took a sixth of the tests' own time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 10)  # instead of 700, 10, 10: fewer collections


def _parts(items: list[pytest.Item], count: int) -> list[list[pytest.Item]]:
    return [items[number * len(items) // count : (number + 1) * len(items) // count] for number in range(count)]


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    """Fail tests that leave a process behind."""
    before = children()
    yield
    fail_if_any_is_left(before)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not _runs_tensorflow(pyfuncitem):
        return None
    # Imports TensorFlow once for all children; that starts no thread yet.
    _ = importlib.import_module("dlemu.loaders.tensorflow").Loader
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _run(pyfuncitem, arguments, write_end)
    os.close(write_end)
    try:
        with open(read_end, errors="replace") as pipe:
            report = pipe.read()
        _, status = os.waitpid(child, 0)
    except BaseException:  # such as the test's timeout
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    assert status == 0, f"in a process of its own (wait status {status}):\n{report}"
    return True


def _runs_tensorflow(item: pytest.Function) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return item.get_closest_marker("tensorflow") is not None or parameters.get("name") == "tensorflow"


def _run(item: pytest.Function, arguments: dict[str, object], write_end: int) -> None:
    """Run the test, write its traceback, if any, and end this process."""
    status = CHILD_FAILED
    try:
        item.obj(**arguments)
        status = CHILD_PASSED
    except BaseException:
        os.write(write_end, traceback.format_exc()[-30_000:].encode())
    finally:
        os._exit(status)
