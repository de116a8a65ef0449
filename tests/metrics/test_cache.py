"""The page-cache proof: who served the bytes, and how loudly that is said."""

from __future__ import annotations

from typing import Any

import pytest

from dlemu.jobs.training.wording import memory_warning
from dlemu.metrics.cache import WANTED_RATIO, CacheProof, prove, served_by_storage
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.rates import Mean
from tests.metrics.test_loss import make_steps


def proof(shares: list[float], **changes: Any) -> CacheProof:
    """The proof of epochs that got these shares of their bytes from storage."""
    rows = make_steps([[0.0]] * len(shares))
    rows["epoch"], rows["step"] = rows["step"], 1
    rows["app_bytes"] = 1000
    rows["storage_bytes"] = [round(1000 * share) for share in shares]
    facts: dict[str, Any] = {"file_system": "ext4", "odirect": False, "evicted": False}
    told = prove(rows, **(facts | {"dataset_bytes": 10, "memory_bytes": 40} | changes))
    assert (memory_warning(told.finding) is None) == (told.finding is None), "there are words for it"
    return told


def code_of(shares: list[float], **changes: Any) -> tuple[str, str] | None:
    """The code and severity of what is to be said of them."""
    found = proof(shares, **changes).finding
    return (found.code, found.severity) if found else None


NOT_READ, PARTLY = (Code.PAGE_CACHE, "loud"), (Code.PAGE_CACHE, "caution")
UNKNOWN = PARTLY


def test_a_second_epoch_out_of_memory_is_said_loudly() -> None:
    told = proof([1.0, 0.01])
    assert told.from_storage_percent.per_epoch == (100.0, 1.0)
    assert told.from_storage_percent.mean == pytest.approx(50.5)
    assert told.finding == Finding(
        Code.PAGE_CACHE,
        "loud",
        {
            "would_help": "reader.odirect=true or reader.evict_page_cache=epochs",
            "dataset_to_memory_ratio": 0.25,
            "from_storage_percent": 50.5,
            "least_percent": 1.0,
            "most_percent": 100.0,
        },
    )


def test_memory_as_a_file_system_is_no_storage() -> None:
    told = proof([0.0], file_system="tmpfs")
    assert told.from_storage_percent.mean == 0
    assert told.finding == Finding(Code.NO_DATA_FROM_STORAGE, "loud", {"pattern": "in_memory", "file_system": "tmpfs"})


def test_a_file_system_without_books_is_not_known() -> None:
    told = proof([0.0, 0.0], file_system="fuse.thing")
    assert told.from_storage_percent.mean is None
    assert told.from_storage_percent.per_epoch == (None, None)
    assert code_of([0.0, 0.0], file_system="fuse.thing") == UNKNOWN
    assert code_of([0.0], file_system="fuse.thing", odirect=True) is None
    assert code_of([0.0], file_system="fuse.thing", dataset_bytes=1000) is None
    assert proof([0.9, 0.9], file_system="nfs4").from_storage_percent.mean == pytest.approx(90), (
        "books that tell something are believed"
    )


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([1.0, 1.02], None),
        ([0.95], None),
        ([0.949], PARTLY),
        ([0.8, 0.8], PARTLY),
        ([0.5, 0.5], PARTLY),
        ([0.499], NOT_READ),
        ([1.5, 0.6], PARTLY),
        ([1.88, 0.0], NOT_READ),
    ],
)
def test_the_epoch_with_least_from_storage_decides(shares: list[float], told: tuple[str, str] | None) -> None:
    assert code_of(shares) == told


def test_where_nothing_is_known_a_dataset_of_five_times_the_memory_is_trusted() -> None:
    unknown: dict[str, Any] = {"file_system": "fuse.thing", "memory_bytes": 100}
    assert code_of([0.0], dataset_bytes=500, **unknown) is None
    small = proof([0.0], dataset_bytes=499, **unknown).finding
    assert small is not None
    assert (small.code, small.severity) == UNKNOWN
    assert small.numbers["dataset_to_memory_ratio"] == 4.99
    assert small.numbers["wanted_ratio"] == WANTED_RATIO == 5
    assert code_of([0.0], dataset_bytes=499, evicted=True, **unknown) is None
    assert code_of([0.0], dataset_bytes=499, **(unknown | {"memory_bytes": 0})) is None


def test_what_is_not_known_is_no_number() -> None:
    lost = proof([0.1], memory_bytes=0)
    assert lost.finding is not None
    assert "dataset_to_memory_ratio" not in lost.finding.numbers
    nothing = make_steps([[0.0]])
    assert not nothing["app_bytes"].any()
    facts = {"file_system": "ext4", "odirect": False, "evicted": False, "dataset_bytes": 10, "memory_bytes": 40}
    assert prove(nothing, **facts).finding == Finding(Code.NO_DATA_FROM_STORAGE, "loud")  # type: ignore[arg-type]
    told = proof([0.0], file_system="fuse.thing")
    assert told.from_storage_percent == Mean(mean=None, per_epoch=(None,))
    assert told.finding is not None
    assert told.finding.numbers["pattern"] == "not_known"


def served(accounted: list[float | None], device: list[float | None]) -> float | None:
    """What the storage served of epochs of 1000 bytes, by these shares in percent."""
    rows = make_steps([[0.0]] * max(len(accounted), len(device)))
    rows["epoch"], rows["step"], rows["app_bytes"] = rows["step"], 1, 1000
    return served_by_storage(
        rows, Mean(mean=None, per_epoch=tuple(accounted)), Mean(mean=None, per_epoch=tuple(device))
    )


def test_the_smaller_of_accounting_and_devices_counts() -> None:
    assert served([100, 100], [100, 100]) == 100
    assert served([1.2, 1.2], [1.2, 1.2]) == pytest.approx(1.2), "holes: neither counts them"
    assert served([100, 100], [40, 60]) == pytest.approx(50), "a cache below the file system"
    assert served([50, 50], [165, 165]) == pytest.approx(50), "neighbours add to what the devices gave"


def test_what_was_read_ahead_makes_up_for_nothing() -> None:
    assert served([188, 0], []) == pytest.approx(50)
    assert served([120, 104], []) == 100


def test_one_of_the_two_is_enough_and_none_says_nothing() -> None:
    assert served([None, None], [30, 165]) == pytest.approx(65)
    assert served([80, None], [None, 60]) == pytest.approx(70)
    assert served([90, 90], [None, None]) == pytest.approx(90)
    assert served([None, 90], [None, None]) == pytest.approx(90), "of an epoch that nobody watched nothing is known"
    assert served([None, None], []) is None


@pytest.mark.parametrize("odirect", [True, False])
@pytest.mark.parametrize("evicted", [True, False])
def test_nobody_is_advised_to_set_what_the_run_had_set(odirect: bool, evicted: bool) -> None:
    found = proof([0.0, 0.0], odirect=odirect, evicted=evicted).finding
    assert found is not None
    settings = str(found.numbers.get("would_help"))
    assert ("reader.odirect" in settings) == (not odirect)
    assert ("reader.evict_page_cache" in settings) == (not odirect and not evicted)
