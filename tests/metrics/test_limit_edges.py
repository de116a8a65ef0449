"""What limited a run at the edges of its rules, and every figure of its evidence; docs/metrics.md, section 6."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlemu.metrics.causes import Causes, Work
from dlemu.metrics.changes import SpeedChange
from dlemu.metrics.limit import (
    BUSY_PERCENT,
    EMULATOR_SHARE,
    FEW_REQUESTS,
    MEMORY_PRESSURE_PERCENT,
    MOST_PERCENT,
    NOTHING_PERCENT,
    PIECE_BYTES,
    SCALES,
    STARVED_SHARE,
    THROTTLED_PERCENT,
    WRITTEN_SHARE,
    Asked,
    Context,
    Device,
    HotDrive,
    Limit,
    OtherReaders,
    Scaling,
    judge_limit,
    reads_may_be_too_few,
)
from dlemu.metrics.ran_out import RanOut
from dlemu.metrics.slow_folders import SlowFolder

ENOUGH = Work(
    elapsed_seconds=10,
    busy_share=0.9,
    starved_share=0.0,
    cpu_known=True,
    readers=16.0,
    call_ms=12.3456,
    call_bytes=4096,
    app_mb_per_second=1234.56,
    wanted_mb_per_second=5432.19,
)
"""Readers enough that nothing but the storage is to blame for the reads."""
FULL = Device(mean_depth=FEW_REQUESTS, busy_percent=BUSY_PERCENT)


def limit_of(au: float = 40.0, causes: Causes | None = None, work: Work = ENOUGH, **around: Any) -> Limit:
    return judge_limit(au, causes or Causes(storage=60.0), work, Context(read_threads=5, **around))


def told(limit: Limit) -> tuple[str, str]:
    return limit.what, limit.confidence


@pytest.mark.parametrize(
    ("causes", "what", "confidence"),
    [
        (Causes(storage=NOTHING_PERCENT), "storage", "high"),
        (Causes(storage=NOTHING_PERCENT - 0.01), "nothing", "high"),
        (Causes(storage=75, hand_over=25), "storage", "high"),
        (Causes(storage=74, hand_over=26), "storage", "medium"),
        (Causes(storage=50, hand_over=26, queueing=24), "storage", "medium"),
        (Causes(storage=49, hand_over=27, queueing=24), "storage", "low"),
        (Causes(storage=40, computing=20, starved=21), "host CPU", "medium"),
        (Causes(storage=42, computing=21, starved=20), "storage", "medium"),
        (Causes(computing=80), "loader", "high"),
        (Causes(starved=80), "host CPU", "high"),
        (Causes(computing=40, starved=41), "host CPU", "high"),
        (Causes(computing=40, starved=40), "loader", "high"),
        (Causes(queueing=60, storage=40), "loader", "medium"),
        (Causes(storage=40, queueing=21, pause=20), "loader", "medium"),
        (Causes(hand_over=60, storage=40), "emulator", "medium"),
    ],
)
def test_the_largest_share_is_the_limit_and_its_size_the_confidence(causes: Causes, what: str, confidence: str) -> None:
    assert told(limit_of(causes=causes)) == (what, confidence)


def test_time_on_cores_that_nobody_measured_makes_less_sure() -> None:
    unknown = replace(ENOUGH, cpu_known=False)
    assert told(limit_of(work=unknown)) == ("storage", "medium")
    assert told(limit_of(work=unknown, host_busy_percent=BUSY_PERCENT)) == ("host CPU", "low")
    assert told(limit_of(work=unknown, host_busy_percent=BUSY_PERCENT - 1)) == ("storage", "medium")
    assert told(limit_of(work=unknown, from_storage_percent=4.9)) == ("loader", "low")
    assert told(limit_of(work=unknown, from_storage_percent=5.0)) == ("storage", "medium")
    assert told(limit_of(from_storage_percent=1.0)) == ("storage", "high")
    cached = limit_of(work=unknown, from_storage_percent=1.0)
    assert cached.evidence[0] == "the accelerators waited for data 60.0 % of the time"
    assert "page cache" in cached.evidence[1]
    starved = limit_of(work=replace(unknown, starved_share=STARVED_SHARE), host_busy_percent=50.0)
    assert told(starved) == ("host CPU", "low")
    assert any("50 % of the cores' time" in sentence for sentence in starved.evidence)


@pytest.mark.parametrize(
    ("ceiling", "au", "what", "confidence"),
    [
        (100 - 60 * EMULATOR_SHARE, 40.0, "emulator", "medium"),
        (100 - 60 * EMULATOR_SHARE + 0.1, 40.0, "storage", "high"),
        (52.1, 40.0, "emulator", "medium"),
        (52.0, 40.0, "emulator", "high"),
        (99.0, 99.5, "emulator", "high"),
    ],
)
def test_what_the_ceiling_explains_is_the_emulators(ceiling: float, au: float, what: str, confidence: str) -> None:
    limit = limit_of(au, ceiling_au=ceiling)
    assert told(limit) == (what, confidence)
    if what == "emulator":
        assert f"reaches {ceiling:.1f} % on this host, and {au:.1f} % on the dataset" in limit.evidence[1]
        assert "60.0 %" in limit.evidence[0]
        assert "fewer ranks" in limit.advice[0]


@pytest.mark.parametrize(
    ("around", "causes", "what", "confidence"),
    [
        ({"cpu_limit_used_percent": BUSY_PERCENT}, Causes(storage=60), "host CPU", "medium"),
        ({"cpu_limit_used_percent": BUSY_PERCENT}, Causes(storage=29, queueing=31), "host CPU", "high"),
        ({"cpu_limit_used_percent": BUSY_PERCENT}, Causes(storage=30, queueing=30), "host CPU", "medium"),
        ({"cpu_limit_used_percent": BUSY_PERCENT - 1}, Causes(storage=60), "storage", "high"),
        ({"cpu_throttled_percent": THROTTLED_PERCENT}, Causes(storage=60), "host CPU", "medium"),
        ({"cpu_throttled_percent": THROTTLED_PERCENT - 1}, Causes(storage=60), "storage", "high"),
        ({"cpu_throttled_percent": 99.0, "device": FULL}, Causes(storage=60), "storage", "high"),
        (
            {"cpu_throttled_percent": 99.0, "device": replace(FULL, busy_percent=BUSY_PERCENT - 1)},
            Causes(storage=60),
            "host CPU",
            "medium",
        ),
        (
            {"cpu_throttled_percent": 99.0, "device": replace(FULL, mean_depth=FEW_REQUESTS - 0.1)},
            Causes(storage=60),
            "host CPU",
            "medium",
        ),
    ],
)
def test_a_cpu_limit_that_is_used_up_comes_first(
    around: dict[str, Any], causes: Causes, what: str, confidence: str
) -> None:
    limit = limit_of(causes=causes, **around)
    assert told(limit) == (what, confidence)
    if what == "host CPU":
        assert "raise the CPU limit" in limit.advice[0]
        assert "waited for data 60.0 %" in limit.evidence[0]


@pytest.mark.parametrize(
    ("causes", "device", "what", "confidence"),
    [
        (Causes(computing=60), None, "memory", "high"),
        (Causes(storage=60), None, "memory", "high"),
        (Causes(storage=60), replace(FULL, busy_percent=BUSY_PERCENT - 1), "memory", "high"),
        (Causes(storage=60), FULL, "storage", "medium"),
        (Causes(computing=60), FULL, "memory", "high"),
        (Causes(queueing=60), None, "loader", "medium"),
        (Causes(queueing=20, computing=15, hand_over=15), None, "loader", "low"),
    ],
)
def test_pressure_on_memory_is_the_limit_of_those_who_need_some(
    causes: Causes, device: Device | None, what: str, confidence: str
) -> None:
    limit = limit_of(causes=causes, device=device, memory_some_percent=MEMORY_PRESSURE_PERCENT)
    assert told(limit) == (what, confidence)
    assert "waited for memory 10 % of the time" in " ".join(limit.evidence)
    calm = limit_of(causes=causes, device=device, memory_some_percent=MEMORY_PRESSURE_PERCENT - 0.1)
    assert calm.what != "memory"
    assert "memory" not in " ".join(calm.evidence)
    if what == "memory":
        assert limit.evidence[0].startswith("the accelerators waited")
        assert "lower reader.read_threads" in limit.advice[0]


@pytest.mark.parametrize(
    ("causes", "evidence", "advice"),
    [
        (Causes(storage=48, queueing=12), "in 80 % of that a worker was blocked in a read", "faster storage"),
        (Causes(computing=48, queueing=12), "in 80 % of that a worker was computing", "reader.read_threads (now 5)"),
        (Causes(pause=48, storage=12), "in 80 % of that a worker was in reader.preprocess_time", "(now 5)"),
        (Causes(queueing=48, storage=12), "in 80 % of that the batch was not begun", "reader.prefetch_size"),
        (Causes(pause=24, queueing=24, storage=12), "in 80 % of that the batch was not begun", "prefetch_size"),
        (Causes(hand_over=48, storage=12), "in 80 % of that the batch lay ready in its worker", "fewer ranks"),
    ],
)
def test_the_evidence_says_how_much_of_the_wait_it_explains(causes: Causes, evidence: str, advice: str) -> None:
    limit = limit_of(causes=causes)
    assert limit.evidence[0].startswith("the accelerators waited for data 60.0 % of the time; ")
    assert evidence in limit.evidence[0]
    assert advice in limit.advice[0]
    assert limit.confidence == "high"
    assert len(limit.advice) == 1


def test_a_batch_that_lies_ready_while_no_core_is_free_waits_for_a_core() -> None:
    handed = Causes(hand_over=60)
    assert told(limit_of(causes=handed, host_busy_percent=BUSY_PERCENT)) == ("host CPU", "high")
    assert told(limit_of(causes=handed, work=replace(ENOUGH, starved_share=STARVED_SHARE))) == ("host CPU", "high")
    less = replace(ENOUGH, starved_share=STARVED_SHARE - 0.01)
    limit = limit_of(causes=handed, work=less, host_busy_percent=BUSY_PERCENT - 1)
    assert told(limit) == ("emulator", "high")
    assert "workers wanted a core and had none in 14 % of their work" in limit.evidence
    half = Causes(hand_over=30, storage=25)
    assert told(limit_of(causes=half, host_busy_percent=99.0)) == ("host CPU", "medium")
    assert told(limit_of(causes=half)) == ("emulator", "medium")


@pytest.mark.parametrize(
    ("busy", "own", "others"),
    [
        (95.0, 95.0 - MOST_PERCENT, True),  # 50 and 45
        (95.0, 95.1 - MOST_PERCENT, False),
        (120.0, 60.0, True),
        (120.0, 60.1, False),
        (30.0, 1.0, False),
    ],
)
def test_those_are_named_who_have_most_of_the_cores(busy: float, own: float, others: bool) -> None:
    limit = limit_of(causes=Causes(starved=60), host_busy_percent=busy, own_busy_percent=own)
    assert limit.what == "host CPU"
    assert ("other programs have most of the cores" in limit.advice[0]) == others
    assert ("fewer ranks on this host" in limit.advice[0]) == (not others)
    assert f"{busy:.0f} % of the cores' time was in use, {own:.0f} % by this run" in limit.evidence


def test_the_evidence_on_cores_has_each_figure_that_is_known() -> None:
    starved = Causes(starved=60)
    bare = limit_of(causes=starved)
    assert bare.evidence[1:] == ("workers wanted a core and had none in 0 % of their work",)
    assert bare.advice[0].endswith("; look for other programs (top)")
    assert limit_of(causes=starved, work=replace(ENOUGH, cpu_known=False)).evidence[1:] == ()
    work = replace(ENOUGH, starved_share=0.5)
    limit = limit_of(
        causes=starved,
        work=work,
        host_busy_percent=42.0,
        cpu_limit_cores=8.0,
        cpu_limit_used_percent=25.0,
        cpu_throttled_percent=1.0,
    )
    assert limit.evidence[1:] == (
        "workers wanted a core and had none in 50 % of their work",
        "42 % of the cores' time was in use",
        "the run used 2.0 of the 8.0 cores that its CPU limit allows",
        "the limit held it back in 1 % of its periods",
    )
    assert len(limit_of(causes=starved, cpu_limit_cores=8.0, cpu_throttled_percent=0.9).evidence) == 2
    assert len(limit_of(causes=starved, cpu_limit_used_percent=8.0).evidence) == 2


def test_the_evidence_on_reads_has_each_figure_that_is_known() -> None:
    device = Device(mean_depth=7.25, busy_percent=93.4, write_mb_per_second=WRITTEN_SHARE * 1234.56 + 0.1)
    limit = limit_of(device=device)
    assert limit.evidence[1:] == (
        "16.0 of the workers were in a read at a time then, 12.3 ms for each call of 4.0 KiB",
        "the storage gave 1,234.6 MB/s; the accelerators ask for 5,432.2 MB/s",
        "the device was busy 93 % of the time, 7.2 requests at a time; 61.8 MB/s were written to it",
    )
    quiet = limit_of(device=replace(device, write_mb_per_second=WRITTEN_SHARE * 1234.56))
    assert quiet.evidence[-1].endswith("requests at a time")
    assert "written" not in limit_of(device=replace(device, write_mb_per_second=None)).evidence[-1]
    large = limit_of(work=replace(ENOUGH, call_bytes=1.5 * 2**20))
    assert "each call of 1.5 MiB" in large.evidence[1]
    assert "each call of 1.0 MiB" in limit_of(work=replace(ENOUGH, call_bytes=2**20)).evidence[1]
    assert "each call of 1,023.0 KiB" in limit_of(work=replace(ENOUGH, call_bytes=1023 * 2**10)).evidence[1]
    assert len(limit_of(work=replace(ENOUGH, call_bytes=0)).evidence) == 2


SCALING = Scaling(readers=5, mb_per_second=1000.0, more_readers=20, more_mb_per_second=1000.0 * SCALES)


def few(**changes: Any) -> Work:
    return replace(ENOUGH, app_mb_per_second=1.0, **changes)


@pytest.mark.parametrize(
    ("work", "around", "what", "confidence"),
    [
        (few(), {"scaling": SCALING}, "loader", "high"),
        (few(), {"scaling": replace(SCALING, more_mb_per_second=1000.0 * SCALES - 1)}, "storage", "high"),
        (few(), {"scaling": replace(SCALING, again_mb_per_second=999.0)}, "loader", "high"),
        (few(), {"scaling": replace(SCALING, again_mb_per_second=1001.0)}, "storage", "high"),
        (ENOUGH, {"scaling": SCALING}, "storage", "high"),  # the run itself got 1,234
        (replace(ENOUGH, app_mb_per_second=1000.0), {"scaling": SCALING}, "loader", "high"),
        (few(), {"scaling": replace(SCALING, mb_per_second=0.0)}, "storage", "high"),
        # A device that is never without several requests.
        (few(readers=1.0), {"device": Device(mean_depth=FEW_REQUESTS, busy_percent=10)}, "storage", "high"),
        # Requests that do not arrive there.
        (few(readers=2.0), {"device": Device(mean_depth=0.99, busy_percent=99)}, "storage", "medium"),
        # Few in the device and few under way.
        (few(readers=2.0), {"device": Device(mean_depth=1.0, busy_percent=89)}, "loader", "medium"),
        (few(readers=2.0), {"device": Device(mean_depth=1.0, busy_percent=90)}, "loader", "low"),
        (few(readers=2.0, call_bytes=PIECE_BYTES), {"device": Device(mean_depth=1, busy_percent=90)}, "loader", "low"),
        (
            few(readers=2.0, call_bytes=PIECE_BYTES + 1),
            {"device": Device(mean_depth=1, busy_percent=90)},
            "storage",
            "low",
        ),
        (few(readers=4.0), {"device": Device(mean_depth=3.9, busy_percent=50)}, "storage", "medium"),
        (few(readers=3.9), {"device": Device(mean_depth=3.9, busy_percent=50)}, "loader", "medium"),
        (few(readers=4.0), {"device": Device(mean_depth=3.9, busy_percent=99)}, "storage", "medium"),
        # No device is known.
        (few(readers=1.0, call_bytes=0), {}, "storage", "medium"),
        (few(readers=FEW_REQUESTS), {}, "storage", "medium"),
        (few(readers=FEW_REQUESTS - 0.1), {}, "loader", "low"),
        (few(readers=2 * FEW_REQUESTS), {}, "storage", "high"),
        (few(readers=2 * FEW_REQUESTS - 0.1), {}, "storage", "medium"),
        (few(readers=1.0, call_bytes=PIECE_BYTES), {}, "loader", "low"),
        (few(readers=3.9, call_bytes=PIECE_BYTES + 1), {}, "storage", "medium"),
        (few(readers=1.0, call_bytes=8 * PIECE_BYTES), {}, "storage", "high"),
        (few(readers=1.0, call_bytes=7 * PIECE_BYTES), {}, "storage", "medium"),
    ],
)
def test_few_readers_are_told_from_slow_storage_at_the_edges(
    work: Work, around: dict[str, Any], what: str, confidence: str
) -> None:
    limit = limit_of(work=work, **around)
    assert told(limit) == (what, confidence)
    assert ("too few readers: more reader.read_threads (now 5) would help" in limit.advice) == (what == "loader")


def test_why_readers_were_too_few_or_enough_is_said_last() -> None:
    trial = limit_of(work=few(), scaling=replace(SCALING, again_mb_per_second=1000.0)).evidence[-1]
    assert trial == ("right after the run 5 readers got 1,000.0 MB/s and 20 got 1,300.0 MB/s, 1.30 times as much")
    on_the_way = limit_of(work=few(readers=2.0), device=Device(mean_depth=0.5, busy_percent=9)).evidence[-1]
    assert "waited before the device" in on_the_way
    slow = limit_of(work=few(readers=2.0, call_bytes=1.5 * PIECE_BYTES), device=Device(mean_depth=1.2, busy_percent=95))
    assert slow.evidence[-1] == (
        "the device had only 1.2 requests at a time and was never idle; metric.scaling_seconds=1 would tell"
    )
    assert (
        "only 1.2 requests at a time"
        in limit_of(work=few(readers=2.0), device=Device(mean_depth=1.2, busy_percent=9)).evidence[-1]
    )
    assert limit_of(work=few(readers=3.0)).evidence[-1] == "only 3.0 small reads were under way at a time"
    assert "the accelerators ask for" in limit_of().evidence[-1], "nothing more to say"


def test_more_readers_are_to_be_tried_where_it_is_not_certain_that_they_are_enough() -> None:
    unsure = "to rule out too few readers, try more reader.read_threads (now 5)"
    assert unsure in limit_of(work=few(readers=7.9)).advice
    assert unsure not in limit_of(work=few(readers=8.0)).advice
    many = Device(mean_depth=0.4, busy_percent=9)
    assert unsure in limit_of(work=few(readers=2 * FEW_REQUESTS - 0.1), device=many).advice
    assert unsure not in limit_of(work=few(readers=2 * FEW_REQUESTS), device=many).advice


ASKED = Asked(requests=3000, slow_down=0, retried=0, first_byte_ms=1.234, last_byte_ms=5.678)


@pytest.mark.parametrize(
    ("percent", "where"), [(None, "server"), (BUSY_PERCENT - 0.1, "server"), (BUSY_PERCENT, "network")]
)
def test_of_an_object_store_it_is_the_network_once_that_is_full(percent: float | None, where: str) -> None:
    limit = limit_of(asked=ASKED, network_percent=percent)
    assert (limit.what, limit.where) == ("storage", where)
    assert ("network" in limit.advice[0]) == (where == "network")
    assert ("faster storage" in limit.advice[0]) == (where == "server")


def test_the_answers_of_a_server_are_told_where_there_is_something_to_tell() -> None:
    calm = limit_of(asked=ASKED).evidence
    assert calm[-1] == "the server's first byte came after 1.23 ms, the last after 5.68 ms (medians)"
    busy = limit_of(asked=replace(ASKED, slow_down=1200, retried=1500), network_percent=44.4).evidence
    assert busy[-4:] == (
        calm[-1],
        "the server said 1,200 times that it is asked too much (503), 40 %",
        "1,500 of 3,000 requests were asked again",
        "the network interface received 44 % of what it can",
    )
    assert "1 times" in " ".join(limit_of(asked=replace(ASKED, requests=0, slow_down=1)).evidence)
    assert not any("network" in sentence for sentence in limit_of(network_percent=44.4).evidence)
    few_asked = limit_of(work=few(), asked=ASKED, scaling=SCALING)
    assert few_asked.advice == (
        "too few readers: more reader.read_threads (now 5) or a larger reader.io_depth would help",
    )


def fall(percent: float) -> SpeedChange:
    return SpeedChange(at_seconds=66, mb_per_second_before=100, mb_per_second_after=percent, percent=percent)


@pytest.mark.parametrize(
    ("around", "advice"),
    [
        ({"speed_changes": (fall(99.9),)}, "became slower at 01:06 and stayed so"),
        ({"speed_changes": (fall(100.0),)}, None),
        ({"speed_changes": (fall(50.0), fall(130.0))}, None),
        ({"speed_changes": (fall(130.0), fall(50.0))}, "became slower at 01:06"),
        (
            {"slow_folders": (SlowFolder(name="b7", ms_per_sample=40.44, others_ms_per_sample=5.05),)},
            "the folder b7 lies: a sample of it takes 40.4 ms, of the others 5.05 ms",
        ),
        (
            {"slow_folders": (SlowFolder(name="b7", ms_per_sample=40.0, others_ms_per_sample=5.0),) * 2},
            "of the others 5 ms, and 1 more",
        ),
        ({"slow_hosts": ("n1", "n2")}, "see to host n1, n2: all others wait"),
        (
            {"hot_drive": HotDrive(name="x", celsius=84.4, limit_celsius=80.2)},
            "x reached 84 degrees Celsius, and from 80",
        ),
        (
            {"ran_out": RanOut(gb=12.345, times=1, mb_per_second_before=9, mb_per_second_after=1234)},
            "count on 1,234 MB/s, the speed that lasts: the first 12.3 GB came faster, as from a cache",
        ),
        (
            {"ran_out": RanOut(gb=12.345, times=2, mb_per_second_before=9, mb_per_second_after=1234)},
            "the first 12.3 GB came faster, 2 times, as from a cache or a burst credit of that size that ran out",
        ),
    ],
)
def test_what_did_not_stay_the_same_is_to_be_looked_at(around: dict[str, Any], advice: str | None) -> None:
    limit = limit_of(**around)
    more = limit.advice[1:]
    if advice is None:
        assert more == ()
    else:
        (said,) = more
        assert advice in said
    shared = limit_of(**around, others=OtherReaders(mb_per_second=5.0, percent=30.0))
    assert told(shared) == ("storage", "high")
    assert shared.advice[0].startswith("stop what else reads from the device")
    if "ran_out" not in around:
        assert shared.advice[1:] == more


def test_who_ran_out_twice_needs_no_second_run() -> None:
    out = RanOut(gb=1.0, times=1, mb_per_second_before=9, mb_per_second_after=1)
    assert limit_of(ran_out=out).advice[1].endswith("would tell it from others on the drive")
    assert limit_of(ran_out=replace(out, times=2)).advice[1].endswith("of that size that ran out")
    both = limit_of(ran_out=out, speed_changes=(fall(50.0),)).advice
    assert len(both) == 2, "the fall is told by its cause"


def test_other_readers_take_nothing_from_the_confidence() -> None:
    others = OtherReaders(mb_per_second=52.25, percent=38.4)
    limit = limit_of(causes=Causes(storage=50, hand_over=26, queueing=24), others=others, device=FULL)
    assert told(limit) == ("storage", "medium")
    assert limit.evidence[-1] == (
        "storage shared with others: others read 52.2 MB/s from the same device (38 % of what it gave)"
    )


@pytest.mark.parametrize(
    ("causes", "work", "ranks", "io_depth", "expected"),
    [
        (Causes(storage=60), few(readers=2.0), 3, None, True),
        (Causes(storage=60), few(readers=2.0), 4, None, False),  # 8 requests
        (Causes(storage=60), few(readers=2.0, call_bytes=2 * PIECE_BYTES), 2, None, False),
        (Causes(storage=60), few(readers=2.0, call_bytes=2 * PIECE_BYTES), 1, None, True),
        (Causes(storage=60), few(readers=1.0), 1, 7, True),
        (Causes(storage=60), few(readers=1.0), 1, 8, False),
        (Causes(storage=NOTHING_PERCENT), few(readers=1.0), 1, None, True),
        (Causes(storage=NOTHING_PERCENT - 0.01), few(readers=1.0), 1, None, False),
        (Causes(storage=30, queueing=30), few(readers=1.0), 1, None, True),
        (Causes(storage=29, queueing=31), few(readers=1.0), 1, None, False),
    ],
)
def test_more_requests_are_worth_a_trial_where_reads_are_most_of_the_loss_and_few(
    causes: Causes, work: Work, ranks: int, io_depth: int | None, expected: bool
) -> None:
    assert reads_may_be_too_few(causes, work, ranks, io_depth) is expected
