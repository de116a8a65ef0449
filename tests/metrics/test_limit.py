"""What limited a run: each case of docs/metrics.md section 6, from step rows and from what is known beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from dlemu.emulator.steplog import StepRows
from dlemu.metrics.au import au_percent
from dlemu.metrics.causes import Causes, Work, find_causes, work_of
from dlemu.metrics.changes import SpeedChange, Stall
from dlemu.metrics.limit import Asked, Context, Device, HotDrive, Limit, OtherReaders, Scaling, judge_limit
from dlemu.metrics.loss import kept_loss_percent
from dlemu.metrics.ran_out import RanOut
from dlemu.metrics.slow_folders import SlowFolder
from tests.metrics.test_loss import MS, any_rows, make_steps


def late_steps(*, cpu_ms: float = 1, cpu_wait_ms: float = 0, **stamps: Any) -> StepRows:
    """Twenty steps of two ranks that lose 30 of 40 ms each, their workers 100 ms at each batch."""
    rows = make_steps([[30.0, 30.0]] * 20, **stamps)
    rows["cpu_ns"], rows["cpu_wait_ns"] = cpu_ms * MS, cpu_wait_ms * MS
    rows["app_bytes"], rows["read_calls"] = 80 << 20, 10
    return rows


def limit_of(rows: StepRows, *, preprocesses: bool = False, workers: int = 8, **around: Any) -> Limit:
    causes = find_causes(rows, preprocesses=preprocesses, workers=workers)
    work = work_of(rows, preprocesses=preprocesses, workers=workers)
    return judge_limit(au_percent(rows), causes, work, Context(**around))


@given(rows=any_rows())
def test_the_causes_add_up_to_the_loss(rows: StepRows) -> None:
    random = np.random.default_rng(len(rows))
    rows["cpu_ns"], rows["cpu_wait_ns"] = random.integers(0, 100 * MS, (2, len(rows)))
    lost = kept_loss_percent(rows)
    for preprocesses in (False, True):
        causes = find_causes(rows, preprocesses=preprocesses, workers=3)
        assert causes.total == pytest.approx(lost.total - lost.uneven_computation, abs=1e-6)


def test_blocked_in_reads_is_the_storage() -> None:
    limit = limit_of(late_steps())
    assert (limit.what, limit.confidence) == ("storage", "high")
    assert any("MB/s" in sentence for sentence in limit.evidence)


def test_a_busy_device_is_the_limit_though_somebody_lacks_memory() -> None:
    limit = limit_of(late_steps(), memory_some_percent=30.0, device=Device(mean_depth=8, busy_percent=99))
    assert (limit.what, limit.confidence) == ("storage", "medium")
    assert any("waited for memory 30 %" in sentence for sentence in limit.evidence)
    idle = limit_of(late_steps(), memory_some_percent=30.0, device=Device(mean_depth=8, busy_percent=50))
    assert idle.what == "memory"


def test_nobody_waited() -> None:
    assert limit_of(make_steps([[0.1, 0.0]] * 5)).what == "nothing"


@pytest.mark.parametrize(
    ("changes", "around", "what"),
    [
        ({"cpu_ms": 60, "cpu_wait_ms": 40, "read_ns": 20}, {}, "host CPU"),
        ({"cpu_ms": 99}, {"host_busy_percent": 97.0}, "host CPU"),
        ({"cpu_ms": 99, "read_ns": 10}, {"host_busy_percent": 40.0}, "loader"),
        ({"read_ns": 5}, {"preprocesses": True}, "loader"),
        ({"read_ns": 5}, {}, "storage"),  # nothing else to be blocked in: opening files
        ({"finished_ns": -1, "started_ns": -101}, {}, "emulator"),
        ({"finished_ns": -1, "started_ns": -101, "cpu_ms": 50, "cpu_wait_ms": 50}, {}, "host CPU"),
        ({"started_ns": 29, "finished_ns": 30, "read_ns": 1, "cpu_ms": 0.5}, {}, "loader"),
        ({}, {"ceiling_au": 50.0}, "emulator"),
        ({}, {"ceiling_au": 89.0}, "storage"),
        ({}, {"memory_some_percent": 30.0}, "memory"),
    ],
)
def test_each_kind_of_limit_is_told_from_the_others(changes: dict[str, Any], around: dict[str, Any], what: str) -> None:
    limit = limit_of(late_steps(**changes), **around)
    assert limit.what == what
    assert limit.evidence
    assert limit.advice


def test_batches_that_queue_behind_busy_workers_wait_for_what_these_do() -> None:
    rows = late_steps(started_ns=29, finished_ns=30, read_ns=1, cpu_ms=0.1)
    rows["started_ns"] -= 40 * MS  # each worker is at a batch for 41 of 40 ms
    rows["read_ns"] = 40 * MS
    queued = make_steps([[30.0, 30.0]] * 20, started_ns=29, finished_ns=30, read_ns=1)
    queued["cpu_ns"] = 1
    assert limit_of(rows, workers=2).what == "storage"
    assert limit_of(queued, workers=2).what == "loader"


def test_workers_that_had_time_before_do_not_hide_a_drive_that_became_slow() -> None:
    """Batches queue behind busy workers in the second half alone; on average these had time."""
    rows = make_steps([[0.0, 0.0]] * 200 + [[30.0, 30.0]] * 40)
    rows["started_ns"], rows["read_ns"] = rows["finished_ns"] - 2 * MS, 2 * MS
    slow = rows["wait_ns"] > 0
    rows["read_ns"][slow] = 20 * MS
    rows["started_ns"][slow] = rows["finished_ns"][slow] - 20 * MS
    behind = rows[slow].copy()  # the reads for later steps, that the late ones queue behind
    behind["step"] += 1000
    behind["started_ns"], behind["finished_ns"] = rows["started_ns"][slow] - 20 * MS, rows["started_ns"][slow]
    behind["wait_ns"] = behind["sync_ns"] = behind["compute_ns"] = 0
    rows = np.concatenate([rows, behind])
    rows["cpu_ns"], rows["app_bytes"], rows["read_calls"] = MS // 10, 8 << 20, 1
    assert work_of(rows, preprocesses=False, workers=2).busy_share < 0.8
    causes = find_causes(rows, preprocesses=False, workers=2)
    assert causes.queueing == pytest.approx(0)
    assert limit_of(rows, workers=2).what == "storage"
    assert limit_of(rows, workers=16).what == "storage", "most of the wait was in reads all the same"


def test_readers_count_while_accelerators_wait() -> None:
    """At other times their queues are full: a drive that is slow half the time had as many readers as it could have."""
    rows = make_steps([[0.0, 0.0]] * 100 + [[30.0, 30.0]] * 20)
    slow = rows["wait_ns"] > 0
    rows["started_ns"] = rows["finished_ns"] - np.where(slow, 40, 1) * MS
    rows["read_ns"], rows["cpu_ns"] = rows["finished_ns"] - rows["started_ns"], 1
    rows["rank"][rows["rank"] == 1] = 3
    for name in ("free_ns", "started_ns", "finished_ns"):
        rows[name][rows["rank"] == 3] += 7_000 * MS  # another host's clock
    assert work_of(rows, preprocesses=False, workers=2).readers == pytest.approx(2, rel=0.05)


WAITING = Causes(storage=70.0)


def reading(*, readers: float, call_bytes: float) -> Work:
    return Work(
        elapsed_seconds=10,
        busy_share=1,
        starved_share=0,
        cpu_known=True,
        readers=readers,
        call_ms=10,
        call_bytes=call_bytes,
        app_mb_per_second=100,
        wanted_mb_per_second=400,
    )


@pytest.mark.parametrize(
    ("work", "around", "what", "confidence"),
    [
        (reading(readers=1, call_bytes=4096), {}, "loader", "low"),
        (reading(readers=1, call_bytes=8 << 20), {}, "storage", "high"),
        (reading(readers=16, call_bytes=4096), {}, "storage", "high"),
        (reading(readers=1, call_bytes=4096), {"device": Device(mean_depth=1.0, busy_percent=99)}, "loader", "low"),
        (reading(readers=1, call_bytes=4096), {"device": Device(mean_depth=1.0, busy_percent=80)}, "loader", "medium"),
        (reading(readers=2, call_bytes=1e6), {"device": Device(mean_depth=2.0, busy_percent=97)}, "storage", "low"),
        (reading(readers=2, call_bytes=4096), {"device": Device(mean_depth=2.0, busy_percent=97)}, "loader", "low"),
        (reading(readers=1, call_bytes=4096), {"device": Device(mean_depth=0.1, busy_percent=9)}, "storage", "medium"),
        (reading(readers=8, call_bytes=4096), {"device": Device(mean_depth=7.5, busy_percent=99)}, "storage", "high"),
        (
            reading(readers=1, call_bytes=8 << 20),
            {"scaling": Scaling(readers=1, mb_per_second=100, more_readers=4, more_mb_per_second=390)},
            "loader",
            "high",
        ),
        (
            reading(readers=1, call_bytes=4096),
            {"scaling": Scaling(readers=1, mb_per_second=100, more_readers=4, more_mb_per_second=101)},
            "storage",
            "high",
        ),
    ],
)
def test_too_few_readers_are_told_from_slow_storage(
    work: Work, around: dict[str, Any], what: str, confidence: str
) -> None:
    limit = judge_limit(25.0, WAITING, work, Context(read_threads=1, **around))
    assert (limit.what, limit.confidence) == (what, confidence)
    assert ("more reader.read_threads" in limit.advice[0]) == (what == "loader")


def test_readers_whose_cpu_is_not_known_are_blamed_with_less_confidence() -> None:
    rows = late_steps(cpu_ms=0)
    assert limit_of(rows).confidence == "medium"
    assert limit_of(rows, host_busy_percent=99.0).what == "host CPU"
    assert limit_of(rows, from_storage_percent=0.0).what == "loader"


def test_a_device_whose_queue_is_never_empty_is_the_limit_though_the_cores_are_busy() -> None:
    """Readers that lack a core leave the device with nothing to do."""
    rows, full = late_steps(cpu_ms=0), Device(mean_depth=8, busy_percent=99)
    assert limit_of(rows, host_busy_percent=99.0, device=full).what == "storage"
    assert limit_of(rows, host_busy_percent=99.0, device=Device(mean_depth=1, busy_percent=99)).what == "host CPU"
    assert limit_of(rows, host_busy_percent=99.0, device=Device(mean_depth=8, busy_percent=50)).what == "host CPU"


def test_a_loader_that_tells_no_calls_is_not_said_to_make_one() -> None:
    rows = late_steps(cpu_ms=0)
    rows["read_calls"] = 0
    limit = limit_of(rows)
    assert (limit.what, limit.confidence) == ("storage", "medium")
    assert "each call" not in " ".join(limit.evidence)
    assert any("more reader.read_threads" in advice for advice in limit.advice)


@pytest.mark.parametrize(
    ("around", "advice", "evidence"),
    [
        ({"host_busy_percent": 99.0, "own_busy_percent": 20.0}, "other programs", "20 % by this run"),
        ({"host_busy_percent": 99.0, "own_busy_percent": 90.0}, "more cores or fewer ranks", "90 % by this run"),
        (
            {"host_busy_percent": 99.0, "own_busy_percent": 20.0, "cpu_throttled_percent": 40.0},
            "raise the CPU limit",
            "the limit held it back in 40 % of its periods",
        ),
        ({"host_busy_percent": 99.0}, "other programs (top)", "99 % of the cores' time was in use"),
        (
            {"host_busy_percent": 9.0, "own_busy_percent": 3.0},
            "more cores or fewer ranks",
            "3 % by this run",
        ),  # affinity
        (
            {
                "host_busy_percent": 66.0,
                "own_busy_percent": 1.0,
                "cpu_limit_cores": 0.3,
                "cpu_limit_used_percent": 99.0,
            },
            "raise the CPU limit",
            "0.3 of the 0.3 cores",
        ),
        (
            {"host_busy_percent": 99.0, "own_busy_percent": 9.0, "cpu_limit_cores": 9.0, "cpu_limit_used_percent": 8.0},
            "other programs have",
            "0.7 of the 9.0 cores",
        ),
        (
            {"host_busy_percent": 4.0, "own_busy_percent": 3.0, "cpu_limit_cores": 2.0, "cpu_limit_used_percent": 95.0},
            "raise the CPU limit",
            "1.9 of the 2.0 cores",
        ),
    ],
)
def test_who_has_the_cores_decides_what_helps(around: dict[str, Any], advice: str, evidence: str) -> None:
    limit = limit_of(late_steps(cpu_ms=70, cpu_wait_ms=29), **around)
    assert limit.what == "host CPU"
    assert advice in limit.advice[0]
    assert evidence in " ".join(limit.evidence)


def test_a_cpu_limit_that_is_far_off_limits_nothing() -> None:
    rows = late_steps(cpu_ms=99)
    assert limit_of(rows, host_busy_percent=4.0, cpu_limit_cores=32.0, cpu_limit_used_percent=6.0).what == "loader"


def test_other_readers_of_the_device_are_named_whatever_more_readers_got() -> None:
    """More readers get more of a drive that is shared: that says nothing of what it had left."""
    more = Scaling(readers=4, mb_per_second=60, more_readers=16, more_mb_per_second=110)
    others = OtherReaders(mb_per_second=52, percent=38)
    limit = limit_of(late_steps(), scaling=more, others=others)
    assert limit.what == "storage"
    assert "others read 52.0 MB/s from the same device (38 % of what it gave)" in " ".join(limit.evidence)
    assert "stop what else reads" in limit.advice[0]


def test_a_storage_that_became_faster_during_the_trial_does_not_say_that_readers_were_too_few() -> None:
    work = reading(readers=4, call_bytes=4096)
    faster: dict[str, Any] = {"readers": 4, "mb_per_second": 60.0, "more_readers": 16, "more_mb_per_second": 137.0}

    def what(scaling: Scaling, work: Work) -> str:
        return judge_limit(25.0, WAITING, work, Context(scaling=scaling)).what

    assert what(Scaling(**faster), work) == "loader"
    assert what(Scaling(**faster, again_mb_per_second=136.0), work) == "storage"
    assert what(Scaling(**faster), replace(work, app_mb_per_second=110)) == "storage", (
        "the run got no less with its own"
    )


@pytest.mark.parametrize("changes", [{}, {"started_ns": 29, "finished_ns": 30, "read_ns": 1}])
def test_who_used_up_its_cpu_limit_waits_for_that_whatever_it_looks_blocked_in(changes: dict[str, Any]) -> None:
    rows = late_steps(**changes)
    limit: dict[str, Any] = {"cpu_limit_cores": 0.4, "cpu_limit_used_percent": 99.0}
    limited = limit_of(rows, **limit)
    assert limited.what == "host CPU"
    assert "raise the CPU limit" in limited.advice[0]
    assert limit_of(rows, ceiling_au=30.0, **limit).what == "host CPU"
    held_back = limit_of(rows, cpu_limit_cores=4.0, cpu_limit_used_percent=60.0, cpu_throttled_percent=80.0)
    assert held_back.what == "host CPU"
    assert "held it back in 80 % of its periods" in " ".join(held_back.evidence)
    full = Device(mean_depth=8, busy_percent=99)
    assert limit_of(late_steps(), device=full, **limit).what == "storage"


def test_a_storage_that_did_not_stay_the_same_is_to_be_looked_at() -> None:
    slower = SpeedChange(at_seconds=6.5, mb_per_second_before=137, mb_per_second_after=61, percent=44.5)
    faster = SpeedChange(at_seconds=6.5, mb_per_second_before=61, mb_per_second_after=137, percent=224.6)
    assert "became slower at 00:06" in " ".join(limit_of(late_steps(), speed_changes=(slower,)).advice)
    assert "became slower" not in " ".join(limit_of(late_steps(), speed_changes=(slower, faster)).advice)
    assert "stood still" in " ".join(limit_of(late_steps(), stalls=(Stall(at_seconds=5, seconds=2),)).advice)


def advice_of(**around: Any) -> str:
    return " ".join(limit_of(late_steps(), **around).advice)


def test_what_ran_out_is_told_with_its_bytes_but_not_where_something_else_explains_it() -> None:
    fall = SpeedChange(at_seconds=6, mb_per_second_before=137, mb_per_second_after=61, percent=45, gb_before=0.8)
    out = RanOut(gb=0.8, times=3, mb_per_second_before=137, mb_per_second_after=61)
    sure = advice_of(speed_changes=(fall,), ran_out=out)
    assert "count on 61 MB/s" in sure
    assert "the first 0.8 GB came faster, 3 times" in sure
    assert "second run" not in sure
    assert "a second run after a pause" in advice_of(speed_changes=(fall,), ran_out=replace(out, times=1))
    hot = HotDrive(name="nvme0n1", celsius=84, limit_celsius=80)
    assert "ran out" not in advice_of(speed_changes=(fall,), ran_out=out, hot_drive=hot)
    assert "ran out" not in advice_of(
        speed_changes=(fall,), ran_out=out, others=OtherReaders(mb_per_second=50, percent=45)
    )


def test_the_slow_one_among_folders_or_hosts_is_named() -> None:
    folder = SlowFolder(name="3", ms_per_sample=40.0, others_ms_per_sample=5.0)
    assert "the folder 3 lies: a sample of it takes 40 ms, of the others 5 ms" in advice_of(slow_folders=(folder,))
    assert "see to host node7" in advice_of(slow_hosts=("node7",))


def test_a_drive_that_is_too_hot_is_to_be_cooled() -> None:
    hot = HotDrive(name="nvme0", celsius=84.2, limit_celsius=82)
    assert "nvme0 reached 84 degrees" in " ".join(limit_of(late_steps(), hot_drive=hot).advice)


ASKED = Asked(requests=1000, slow_down=40, retried=50, first_byte_ms=80.0, last_byte_ms=100.0)


def test_of_an_object_store_the_server_or_the_network_is_named() -> None:
    server = limit_of(late_steps(), asked=ASKED, network_percent=30.0)
    assert (server.what, server.where) == ("storage", "server")
    evidence = " ".join(server.evidence)
    assert "first byte came after 80 ms, the last after 100 ms" in evidence
    assert "said 40 times that it is asked too much (503), 4 %" in evidence
    assert "50 of 1,000 requests were asked again" in evidence
    network = limit_of(late_steps(), asked=ASKED, network_percent=97.0)
    assert (network.what, network.where) == ("storage", "network")
    assert "faster network" in network.advice[0]
    assert limit_of(late_steps()).where is None


def test_of_a_lack_of_processors_tls_is_named_where_it_took_most_of_them() -> None:
    computing = late_steps(cpu_ms=99)
    tls = limit_of(computing, host_busy_percent=97.0, asked=replace(ASKED, tls_cpu_percent=72.0))
    assert (tls.what, tls.where) == ("host CPU", "TLS")
    assert "reading over TLS (decrypting, copying) took 72 % of the readers' CPU time" in tls.evidence
    assert "http:// instead of https://" in tls.advice[0]
    little = limit_of(computing, host_busy_percent=97.0, asked=replace(ASKED, tls_cpu_percent=20.0))
    assert (little.what, little.where) == ("host CPU", None)
    assert "took 20 % of the readers' CPU time" in " ".join(little.evidence)
    assert "TLS" not in " ".join(limit_of(computing, host_busy_percent=97.0, asked=ASKED).evidence)


def test_few_requests_at_a_long_latency_want_more_in_flight() -> None:
    trial = Scaling(readers=8, mb_per_second=1e5, more_readers=32, more_mb_per_second=3.8e5, again_mb_per_second=1e5)
    limit = limit_of(late_steps(), asked=ASKED, scaling=trial)
    assert limit.what == "loader"
    assert "a larger reader.io_depth" in limit.advice[0]


def test_what_is_written_to_the_device_is_told_where_it_is_much() -> None:
    busy = {"mean_depth": 8.0, "busy_percent": 99.0}
    told = limit_of(late_steps(), device=Device(**busy, write_mb_per_second=900.0))
    assert "900.0 MB/s were written to it" in " ".join(told.evidence)
    assert "written" not in " ".join(limit_of(late_steps(), device=Device(**busy, write_mb_per_second=0.1)).evidence)
