"""The page-cache proof: who served the bytes, and how loudly that is said."""

from __future__ import annotations

from typing import Any

import pytest

from dlemu.metrics.cache import CacheProof, prove, served_by_storage
from dlemu.metrics.spread import Mean
from tests.metrics.test_loss import make_steps


def proof(shares: list[float], **changes: Any) -> CacheProof:
    """The proof of epochs that got these shares of their bytes from storage."""
    rows = make_steps([[0.0]] * len(shares))
    rows["epoch"], rows["step"] = rows["step"], 1
    rows["app_bytes"] = 1000
    rows["storage_bytes"] = [round(1000 * share) for share in shares]
    facts: dict[str, Any] = {"file_system": "ext4", "odirect": False, "evicted": False}
    return prove(rows, **(facts | {"dataset_bytes": 10, "memory_bytes": 40} | changes))


def test_a_second_epoch_out_of_memory_is_said_loudly() -> None:
    told = proof([1.0, 0.01])
    assert told.from_storage_percent.per_epoch == (100.0, 1.0)
    assert told.from_storage_percent.mean == pytest.approx(50.5)
    assert told.dataset_to_memory == 0.25
    assert str(told.warning).startswith("STORAGE WAS NOT READ")
    assert "100, 1 %" in str(told.warning)


def test_what_was_read_ahead_is_said_beside_the_hundred_percent() -> None:
    assert "from storage in each epoch: 100 and 88 more read ahead, 0 %" in str(proof([1.88, 0.0]).warning)


def test_what_was_all_read_from_storage_needs_no_warning_however_small() -> None:
    assert proof([1.0, 1.02]).warning is None


def test_a_part_out_of_memory_is_said_without_shouting() -> None:
    told = proof([0.8, 0.8]).warning
    assert told is not None
    assert told.startswith("the page cache served 20 %")


def test_memory_as_a_file_system_is_no_storage() -> None:
    told = proof([0.0], file_system="tmpfs")
    assert told.from_storage_percent.mean == 0
    assert "tmpfs" in str(told.warning)


def test_a_file_system_without_books_is_not_known() -> None:
    told = proof([0.0, 0.0], file_system="fuse.thing")
    assert told.from_storage_percent.mean is None
    assert told.from_storage_percent.per_epoch == (None, None)
    assert "not known" in str(told.warning)
    assert proof([0.0], file_system="fuse.thing", odirect=True).warning is None
    assert proof([0.0], file_system="fuse.thing", dataset_bytes=1000).warning is None
    assert proof([0.9, 0.9], file_system="nfs4").from_storage_percent.mean == pytest.approx(90), (
        "books that tell something are believed"
    )


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([0.95], None),
        (
            [0.949],
            "the page cache served 5 % of the bytes; the dataset is 0.25 times the hosts' memory; reader.odirect",
        ),
        ([0.5, 0.5], "the page cache served 50 % of the bytes; the dataset is"),
        ([0.499], "STORAGE WAS NOT READ: the page cache served 50 % of the bytes; the dataset is 0.25 times"),
        ([0.8, 0.9], "the page cache served 15 % of the bytes; the dataset"),
        ([0.8, 0.905], "the page cache served 15 % of the bytes (from storage in each epoch: 80, 90 %); the dataset"),
        (
            [1.5, 0.6],
            "the page cache served 0 % of the bytes (from storage in each epoch: 100 and 50 more read ahead, 60",
        ),
        ([1.004, 0.6], "in each epoch: 100, 60 %"),
        ([1.005, 0.6], "in each epoch: 100 and 0 more read ahead, 60 %"),
        ([1.009, 0.6], "in each epoch: 100 and 1 more read ahead, 60 %"),
        ([1, 1, 1, 1, 1, 1, 0.6], "in each epoch: 100, 100, 100, 100, 100, 100 %)"),
    ],
)
def test_a_warning_says_who_served_and_how_large_the_dataset_is(shares: list[float], said: str | None) -> None:
    warning = proof(shares).warning
    if said is None:
        assert warning is None
    else:
        assert warning is not None
        assert said in warning
        assert "reader.evict_page_cache=epochs" in warning


def test_where_nothing_is_known_a_dataset_of_five_times_the_memory_is_trusted() -> None:
    unknown = {"file_system": "fuse.thing", "memory_bytes": 100}
    assert proof([0.0], dataset_bytes=500, **unknown).warning is None
    small = str(proof([0.0], dataset_bytes=499, **unknown).warning)
    assert "the dataset is 5 times the hosts' memory" in small
    assert "MLPerf Storage asks for 5; reader.odirect=true" in small
    assert proof([0.0], dataset_bytes=499, evicted=True, **unknown).warning is None
    assert proof([0.0], dataset_bytes=499, **(unknown | {"memory_bytes": 0})).warning is None


def test_what_is_not_known_is_no_number() -> None:
    lost = proof([0.1], memory_bytes=0)
    assert lost.dataset_to_memory is None
    assert "an unknown share of the hosts' memory" in str(lost.warning)
    nothing = make_steps([[0.0]])
    assert not nothing["app_bytes"].any()
    facts = {"file_system": "ext4", "odirect": False, "evicted": False, "dataset_bytes": 10, "memory_bytes": 40}
    told = prove(nothing, **facts)  # type: ignore[arg-type]
    assert told.from_storage_percent == Mean(mean=None, per_epoch=(None,))
    assert told.warning is not None
    assert told.warning.startswith("it is not known whether the storage was read")


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
    warning = proof([0.0, 0.0], odirect=odirect, evicted=evicted).warning
    assert warning is not None
    assert ("reader.odirect=true" in warning) == (not odirect)
    assert ("reader.evict_page_cache=epochs" in warning) == (not odirect and not evicted)
    assert not warning.endswith("; ")
