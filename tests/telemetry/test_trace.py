"""Queue depths, latencies and sizes from trace events in the kernel's text format."""

from __future__ import annotations

import pytest

from dlemu.telemetry.trace import Requests

SECOND_US = 1_000_000


def issue(us: int, sector: int, *, flags: str = "R", sectors: int = 8, device: str = "7,0", comm: str = "a b") -> bytes:
    seconds = f"{us // SECOND_US}.{us % SECOND_US:06}"
    what = f"{device} {flags} {512 * sectors} () {sector} + {sectors} none,0,0 [{comm}]"
    return f"      pt_data_w-77  [001] {seconds}: block_rq_issue: {what}".encode()


def complete(us: int, sector: int, *, flags: str = "R", kind: str = "complete", device: str = "7,0") -> bytes:
    seconds = f"{us // SECOND_US}.{us % SECOND_US:06}"
    return f"  <idle>-0  [000] {seconds}: block_rq_{kind}: {device} {flags} () {sector} + 8 none,0,0 [0]".encode()


def requests_after(*lines: bytes, until_us: int) -> Requests:
    requests = Requests({b"7,0": "loop0"})
    requests.count(True, SECOND_US)
    requests.add(lines)
    requests.count(False, until_us)
    return requests


def weights(requests: Requests, kind: str, operation: str = "read") -> dict[float, float]:
    return {bin.low: bin.weight for bin in requests.bins() if (bin.kind, bin.operation) == (kind, operation)}


def test_depth_latency_and_size_of_two_overlapping_reads() -> None:
    requests = requests_after(
        issue(SECOND_US + 100, 0),
        issue(SECOND_US + 300, 64, flags="RA", sectors=256),
        complete(SECOND_US + 600, 0),
        complete(SECOND_US + 1100, 64, flags="RA"),
        until_us=SECOND_US + 2000,
    )
    assert weights(requests, "queue_depth_seconds") == pytest.approx({0: 1000e-6, 1: 700e-6, 2: 300e-6})
    assert weights(requests, "request_kib") == {4: 1, 128: 1}
    bins = [bin for bin in requests.bins() if bin.kind == "latency_us"]
    assert [bin.weight for bin in bins] == [1, 1]
    assert bins[0].low <= 500 < bins[0].high
    assert bins[1].low <= 800 < bins[1].high
    assert all(bin.high / bin.low < 1.1 for bin in bins), "fine enough for percentiles within a tenth"


def test_writes_are_counted_separately_and_other_operations_not_at_all() -> None:
    requests = requests_after(
        issue(SECOND_US, 0, flags="WS"),
        issue(SECOND_US, 8, flags="FF", sectors=0),
        issue(SECOND_US, 8, flags="D"),
        complete(SECOND_US + 500, 0, flags="WS"),
        until_us=SECOND_US + 1000,
    )
    assert weights(requests, "queue_depth_seconds", "write") == pytest.approx({0: 500e-6, 1: 500e-6})
    assert weights(requests, "queue_depth_seconds") == pytest.approx({0: 1000e-6})
    assert sum(weights(requests, "latency_us", "write").values()) == 1


def test_a_request_that_is_issued_again_counts_once() -> None:
    requests = requests_after(
        issue(SECOND_US, 0),
        complete(SECOND_US + 100, 0, kind="requeue"),
        issue(SECOND_US + 200, 0),
        issue(SECOND_US + 300, 0),
        complete(SECOND_US + 400, 0),
        until_us=SECOND_US + 500,
    )
    assert sum(weights(requests, "latency_us").values()) == 1
    assert weights(requests, "queue_depth_seconds") == pytest.approx({0: 200e-6, 1: 300e-6})


def test_requests_from_before_the_trace_and_of_other_devices_are_ignored() -> None:
    requests = requests_after(
        complete(SECOND_US + 100, 999),
        issue(SECOND_US + 100, 0, device="8,0"),
        b"CPU:1 [LOST 12 EVENTS]",
        b"",
        until_us=SECOND_US + 1000,
    )
    assert weights(requests, "queue_depth_seconds") == pytest.approx({0: 1000e-6})
    assert weights(requests, "latency_us") == {}


def test_histograms_cover_only_training_but_mean_depths_all_time() -> None:
    requests = Requests({b"7,0": "loop0"})
    requests.add([issue(SECOND_US, 0), issue(SECOND_US, 8)])
    list(requests.mean_depths(SECOND_US))
    requests.count(True, SECOND_US + 100)
    requests.add([complete(SECOND_US + 150, 8)])
    requests.count(False, SECOND_US + 200)
    requests.add([complete(SECOND_US + 300, 0)])
    assert weights(requests, "queue_depth_seconds") == pytest.approx({2: 50e-6, 1: 50e-6})
    means = {operation: depth for _, operation, depth in requests.mean_depths(SECOND_US + 400)}
    assert means == {"read": pytest.approx((2 * 150 + 150) / 400), "write": 0}
