"""Each sentence of a training run, once, where it is made: of its code and numbers."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from dlemu.jobs.training.issues import Issue
from dlemu.jobs.training.wording import cache_warning, in_words, issue_lines, verdict_line
from dlemu.metrics.cache import Cached, CacheProof
from dlemu.metrics.findings import Finding
from dlemu.metrics.limit import Advice, Limit, Seen, What
from dlemu.metrics.spread import Mean
from dlemu.metrics.verdict import Verdict, VerdictCode

AU: dict[str, Any] = {"by": "au", "au_percent": 89.5, "threshold_percent": 90.0}
VERDICTS: list[tuple[VerdictCode, dict[str, Any], str]] = [
    (VerdictCode.PASS, AU | {"au_percent": 91}, "PASS: AU 91.00 % is at least 90 %"),
    (VerdictCode.PASS, AU | {"uncertainty_percent": 0.5}, "PASS: AU 89.50 +- 0.50 % is at least 90 %"),
    (VerdictCode.PASS, AU | {"uncertainty_percent": 0.005}, "PASS: AU 89.50 +- 0.01 % is at least 90 %"),
    (VerdictCode.PASS, AU | {"uncertainty_percent": 0.0049}, "PASS: AU 89.50 % is at least 90 %"),
    (
        VerdictCode.PASS,
        AU | {"au_percent": 96.5, "headline_au_percent": 96.5, "sustained_au_percent": 80.0},
        "PASS: AU 96.50 % is at least 90 %, thanks to 16.5 points of prefetching: the storage sustains 80.0 %",
    ),
    (
        VerdictCode.FAIL,
        AU | {"by": "sustained", "au_percent": 80, "headline_au_percent": 96.5, "sustained_au_percent": 80.0},
        "FAIL: sustained AU 80.00 % is below 90 %; the AU of the counted steps, 96.50 %, would pass, thanks to 16.5 "
        "points of prefetching",
    ),
    (VerdictCode.FAIL, AU | {"by": "rules"}, "FAIL: AU of whole epochs 89.50 % is below 90 %"),
    (
        VerdictCode.UNDECIDED,
        AU | {"uncertainty_percent": 1.0, "epochs": 20},
        "UNDECIDED: AU 89.50 +- 1.00 % is too close to 90 % to call; run longer: train.epochs=20",
    ),
    (VerdictCode.INCOMPLETE, {}, "NO VERDICT: the run did not complete"),
    (
        VerdictCode.NOTHING_COMPUTED,
        {},
        "NO VERDICT: no computation to judge (train.computation_time is 0, or every step was excluded)",
    ),
    (VerdictCode.NOTHING_READ, {}, "NO VERDICT: no byte was read; set metric.cached=true to judge it anyway"),
    (
        VerdictCode.UNEVEN_COMPUTATION,
        AU | {"au_without_waits_percent": 89.75},
        "NO VERDICT on the storage: AU 89.50 % is below 90 %, but computation times, drawn at random for each rank, "
        "allow only 89.75 % on any storage; use fewer ranks or a smaller stdev",
    ),
    (
        VerdictCode.EMULATOR_TOO_SLOW,
        AU | {"ceiling_au_percent": 80.0},
        "NO VERDICT on the storage: AU 89.50 % is below 90 %, but even without storage the emulator reaches only "
        "80.00 % on this host; use fewer ranks or a host with more cores",
    ),
    (
        VerdictCode.CACHE_SERVED,
        AU | {"from_storage_percent": 50.0},
        "NO VERDICT: only 50 % of the bytes came from storage (AU 89.50 %); bypass or empty the page cache, or set "
        "metric.cached=true to judge it anyway",
    ),
    (
        VerdictCode.TOO_FEW_STEPS,
        AU | {"kept_steps": 2, "prefetched_steps": 5},
        "NO VERDICT: only 2 steps per epoch count, and up to 5 batches are read during the first step, which does "
        "not: use more files, or fewer ranks",
    ),
    (
        VerdictCode.SUPPLY_NOT_KNOWN,
        AU,
        "NO VERDICT: all batches of an epoch are read at once at its start, where AU 89.50 % is a lower bound; what "
        "the storage sustains is unknown: use more files, or fewer ranks",
    ),
    (
        VerdictCode.HOST_LIMITED,
        AU | {"limited_by": "memory"},
        "NO VERDICT on the storage: AU 89.50 % is below 90 %, but the host's memory is the limit, so the storage may "
        "be able to deliver more; relieve the host and run again",
    ),
]


@pytest.mark.parametrize(("code", "numbers", "line"), VERDICTS)
def test_a_verdict_in_a_line(code: VerdictCode, numbers: dict[str, Any], line: str) -> None:
    assert verdict_line(Verdict(code, numbers)) == line


SEEN: list[tuple[Seen, dict[str, Any], str]] = [
    (Seen.WAITED, {"percent": 60.0}, "the accelerators waited for data 60.0 % of the time"),
    (
        Seen.CEILING,
        {"ceiling_au_percent": 52.1, "au_percent": 40.0},
        "without storage the emulator reaches 52.1 % on this host, and 40.0 % on the dataset",
    ),
    (Seen.CORES_WERE_FREE, {}, "cores were idle"),
    (Seen.CACHE_SERVED, {}, "the page cache served the data, and cores were idle"),
    (
        Seen.READS,
        {"readers": 16.0, "call_ms": 12.3456, "call_bytes": 1023 * 2**10},
        "16.0 workers were reading at a time then, 12.3 ms per call of 1,023.0 KiB",
    ),
    (
        Seen.READS,
        {"readers": 1.0, "call_ms": 1.0, "call_bytes": 2**20},
        "1.0 workers were reading at a time then, 1 ms per call of 1.0 MiB",
    ),
    (
        Seen.RATES,
        {"given_mb_per_second": 1234.56, "wanted_mb_per_second": 5432.19},
        "the storage delivered 1,234.6 MB/s; accelerators that never wait take 5,432.2 MB/s",
    ),
    (
        Seen.DEVICE,
        {"busy_percent": 93.4, "depth": 7.25},
        "the device was busy 93 % of the time, with 7.2 requests at a time",
    ),
    (
        Seen.DEVICE,
        {"busy_percent": 93.4, "depth": 7.25, "written_mb_per_second": 61.8},
        "the device was busy 93 % of the time, with 7.2 requests at a time; 61.8 MB/s were written to it",
    ),
    (
        Seen.ANSWERS,
        {"first_byte_ms": 1.234, "last_byte_ms": 5.678},
        "the server's first byte came after 1.23 ms, the last after 5.68 ms (medians)",
    ),
    (
        Seen.SLOW_DOWN,
        {"answers": 1200, "percent": 40.0},
        "the server throttled 1,200 requests (503 Slow Down), 40 %",
    ),
    (Seen.RETRIED, {"retried": 1500, "requests": 3000}, "1,500 of 3,000 requests were retried"),
    (Seen.NETWORK, {"percent": 44.4}, "the network interface received 44 % of its capacity"),
    (
        Seen.OTHER_READERS,
        {"mb_per_second": 52.25, "percent": 38.4},
        "the storage is shared: others read 52.2 MB/s from the same device (38 % of what it delivered)",
    ),
    (
        Seen.SCALING,
        {"readers": 5, "mb_per_second": 1e3, "more_readers": 20, "more_mb_per_second": 1300.0, "factor": 1.3},
        "right after the run 5 readers got 1,000.0 MB/s and 20 got 1,300.0 MB/s, 1.30 times as much",
    ),
    (
        Seen.FEWER_READERS,
        {"readers": 4, "mb_per_second": 40.0, "fewer_readers": 1, "fewer_mb_per_second": 120.0, "factor": 3.0},
        "right after the run 4 readers got 40.0 MB/s and 1 got 120.0 MB/s, 3.00 times as much",
    ),
    (
        Seen.LARGER_REQUESTS,
        {
            "readers": 4,
            "mb_per_second": 40.0,
            "request_bytes": 4 << 20,
            "larger_mb_per_second": 120.0,
            "factor": 3.0,
        },
        "right after the run 4 readers got 40.0 MB/s, and with requests of 4,194,304 bytes 120.0 MB/s, 3.00 times as "
        "much",
    ),
    (
        Seen.OUT_OF_ORDER,
        {"batches": 13.4},
        "batches are delivered in order: when a wait ended, 13.4 later ones were ready behind the slow one",
    ),
    (
        Seen.DEEPER_QUEUE,
        {"prefetch_size": 32, "now": 16, "au_percent": 81.0, "now_au_percent": 60.8},
        "the same reads with 32 batches ahead instead of 16 give 81.0 % instead of 60.8 % (AU over whole epochs, "
        "event model)",
    ),
    (
        Seen.STUCK_BEFORE_DEVICE,
        {},
        "most of the reads waited before they reached the device: something on the way limits them (cgroup, network)",
    ),
    (Seen.DEVICE_HAD_FEW, {"depth": 1.2}, "the device had only 1.2 requests at a time"),
    (
        Seen.DEVICE_NEVER_IDLE,
        {"depth": 1.2},
        "the device had only 1.2 requests at a time but was never idle; metric.scaling_seconds=1 would show whether "
        "it can deliver more",
    ),
    (Seen.FEW_SMALL_READS, {"readers": 3.0}, "only 3.0 small reads were in flight at a time"),
    (Seen.STARVED, {"percent": 14.4}, "workers waited for a core in 14 % of their work"),
    (Seen.CORES, {"percent": 42.0}, "the cores were 42 % busy"),
    (Seen.CORES, {"percent": 99.0, "own_percent": 20.0}, "the cores were 99 % busy, 20 % by this run"),
    (Seen.TLS, {"percent": 72.0}, "TLS (decrypting, copying) took 72 % of the readers' CPU time"),
    (
        Seen.CPU_LIMIT,
        {"used_cores": 1.9, "limit_cores": 2.0},
        "the run used 1.9 of the 2.0 cores that its CPU limit allows",
    ),
    (Seen.WOKE_LATE, {"percent": 24.6}, "the ranks themselves woke late, for 25 % of the time"),
    (Seen.THROTTLED, {"percent": 80.0}, "the CPU limit throttled it in 80 % of its periods"),
    (
        Seen.FIRST_STEPS_TOO,
        {},
        "judged with the first steps, during which batches of later steps were read ahead",
    ),
]
OF_THE_WAIT: list[tuple[Seen, str]] = [
    (Seen.BLOCKED_IN_READS, "during 80 % of that, a worker was blocked in a read"),
    (Seen.COMPUTING, "during 80 % of that, a worker was computing (decoding, copying) or waiting for a core"),
    (Seen.PREPROCESSING, "during 80 % of that, a worker was in reader.preprocess_time"),
    (Seen.NOT_BEGUN, "during 80 % of that, no worker had started the batch although workers were free"),
    (Seen.LAY_READY, "during 80 % of that, the batch was ready in its worker"),
    (Seen.MEMORY_PRESSURE, "some task on the host was stalled on memory 80 % of the time (memory pressure)"),
]


def told(*seen: Finding, what: What = "storage", to_do: tuple[Finding, ...] = ()) -> Limit:
    return in_words(Limit(what=what, confidence="high", seen=seen, to_do=to_do))


@pytest.mark.parametrize(("code", "numbers", "line"), SEEN)
def test_evidence_in_a_line(code: Seen, numbers: dict[str, Any], line: str) -> None:
    assert told(Finding(code, numbers=numbers)).evidence == (line,)


@pytest.mark.parametrize(("code", "line"), OF_THE_WAIT)
def test_what_the_wait_was_for_goes_on_with_its_sentence(code: Seen, line: str) -> None:
    waited, why = Finding(Seen.WAITED, numbers={"percent": 60.0}), Finding(code, numbers={"percent": 80.0})
    assert told(waited, why).evidence == (f"the accelerators waited for data 60.0 % of the time; {line}",)
    alone = told(waited, why, what="memory").evidence
    assert (len(alone) == 2) == (code == Seen.MEMORY_PRESSURE), "that is the limit itself"


FASTER = {"mb_per_second": 1234.0, "gb": 12.345}
ADVICE: list[tuple[Advice, dict[str, Any], str]] = [
    (
        Advice.MORE_READERS,
        {"read_threads": 5},
        "too few readers: raise reader.read_threads (now 5)",
    ),
    (
        Advice.MORE_REQUESTS,
        {"read_threads": 5},
        "too few requests in flight: raise reader.read_threads (now 5) or reader.io_depth",
    ),
    (
        Advice.FIRST_TOUCH,
        {"gb": 0.8, "mb_per_second_first": 40.0, "mb_per_second_after": 136.0},
        "read all of the dataset once before it counts: the first 0.8 GB, each byte for the first time, came at 40 "
        "MB/s and later epochs at 136 MB/s, as on a volume that is loaded when it is first read, or through a cache "
        "that the first epoch fills",
    ),
    (
        Advice.FEWER_READERS,
        {"read_threads": 1, "now": 4},
        "too many readers: reader.read_threads=1 (now 4) gets more from this storage",
    ),
    (
        Advice.LARGER_REQUESTS,
        {"transfer_size": 4 << 20},
        "larger requests get more from this storage: reader.transfer_size=4194304",
    ),
    (
        Advice.DEEPER_QUEUE,
        {"prefetch_size": 32, "now": 16, "au_percent": 81.0, "now_au_percent": 60.8},
        "read further ahead: reader.prefetch_size=32 (now 16)",
    ),
    (
        Advice.TRY_MORE_READERS,
        {"read_threads": 5},
        "to rule out too few readers, try a higher reader.read_threads (now 5)",
    ),
    (
        Advice.MORE_WORKERS,
        {"read_threads": 5},
        "raise reader.read_threads (now 5): each batch is the work of one worker",
    ),
    (Advice.READ_AHEAD, {}, "read further ahead: raise reader.prefetch_size or reader.read_threads"),
    (Advice.FASTER_STORAGE, {}, "faster storage, or fewer accelerators on it"),
    (Advice.FASTER_NETWORK, {}, "a faster network between host and server, or fewer accelerators on it"),
    (
        Advice.STOP_OTHER_READERS,
        {},
        "stop other programs that read from the device (iotop), or allow for them: this is not the storage's full "
        "speed",
    ),
    (
        Advice.COOL_DRIVE,
        {"drive": "nvme0", "celsius": 84.2, "limit_celsius": 80.2},
        "cool the drive: nvme0 reached 84 degrees Celsius, and it throttles itself from 80 on",
    ),
    (
        Advice.SPEED_THAT_LASTS,
        FASTER | {"times": 1},
        "plan with 1,234 MB/s, the speed that lasts: the first 12.3 GB came faster, as if from a cache or burst "
        "credit of that size that ran out; repeat the run after a pause to tell this from other load on the drive",
    ),
    (
        Advice.SPEED_THAT_LASTS,
        FASTER | {"times": 2},
        "plan with 1,234 MB/s, the speed that lasts: the first 12.3 GB came faster, 2 times, as if from a cache or "
        "burst credit of that size that ran out",
    ),
    (
        Advice.BECAME_SLOWER,
        {"at_seconds": 66.0},
        "find out why the storage slowed down at 01:06 and stayed slow: other load, a hot drive, or its own "
        "background work; plan with the lower speed",
    ),
    (
        Advice.SLOW_FOLDER,
        {"folder": "b7", "ms_per_sample": 40.44, "others_ms_per_sample": 5.05, "folders": 1},
        "check where folder b7 is stored: a sample takes 40.4 ms there and 5.05 ms in the others",
    ),
    (
        Advice.SLOW_FOLDER,
        {"folder": "b7", "ms_per_sample": 40.0, "others_ms_per_sample": 5.0, "folders": 2},
        "check where folder b7 is stored: a sample takes 40 ms there and 5 ms in the others, and 1 more",
    ),
    (
        Advice.SLOW_HOSTS,
        {"hosts": "n1, n2"},
        "check host n1, n2: all others wait for its reads (its mount, network or drive)",
    ),
    (
        Advice.STOOD_STILL,
        {"times": 1},
        "find out why the storage stalled: background work of the drive or file system, the network, other load",
    ),
    (Advice.MORE_CORES, {}, "more cores or fewer ranks on this host; consider reader.decode and verify"),
    (
        Advice.RAISE_CPU_LIMIT,
        {},
        "raise the CPU limit of this container or job (cgroup), or use fewer ranks; consider reader.decode",
    ),
    (
        Advice.STOP_OTHER_PROGRAMS,
        {},
        "other programs use most of the cores: stop them (top), or run on an idle host",
    ),
    (
        Advice.RELIEVE_EMULATOR,
        {},
        "this says little about the storage: use fewer ranks on this host, or a host with more cores",
    ),
    (
        Advice.CHEAPER_HAND_OVER,
        {},
        "the trainer receives each batch from a worker as tensors (reader.tensors), as the training job does: fewer or "
        "smaller tensors, or more cores, shorten that; faster storage does not",
    ),
    (
        Advice.FREE_MEMORY,
        {},
        "lower reader.read_threads, reader.prefetch_size or ranks, or stop other programs that use the memory",
    ),
]
BESIDES: list[tuple[Advice, str]] = [
    (Advice.RAISE_CPU_LIMIT_TOO, "raise the CPU limit of this container or job (cgroup) as well"),
    (Advice.LOOK_FOR_PROGRAMS, "look for other programs (top)"),
    (Advice.WITHOUT_TLS, "on a trusted network, http:// instead of https:// saves the CPU time of TLS"),
]


@pytest.mark.parametrize(("code", "numbers", "line"), ADVICE)
def test_advice_in_a_line(code: Advice, numbers: dict[str, Any], line: str) -> None:
    assert told(to_do=(Finding(code, numbers=numbers),)).advice == (line,)


@pytest.mark.parametrize(("code", "line"), BESIDES)
def test_advice_that_comes_on_top_goes_on_with_the_sentence_before(code: Advice, line: str) -> None:
    advice = told(to_do=(Finding(Advice.STOP_OTHER_PROGRAMS), Finding(code))).advice
    assert advice == (f"other programs use most of the cores: stop them (top), or run on an idle host; {line}",)


def test_no_code_is_without_words() -> None:
    assert {code for code, *_ in VERDICTS} == set(VerdictCode)
    assert {code for code, *_ in chain(SEEN, OF_THE_WAIT)} == set(Seen)
    assert {code for code, *_ in chain(ADVICE, BESIDES)} == set(Advice)
    assert {code for code, *_ in ISSUES} == set(Issue)


ISSUES: list[tuple[Issue, dict[str, Any], str]] = [
    (Issue.NOTE, {"text": "{as} it was noted"}, "{as} it was noted"),
    (
        Issue.REQUESTS_OF_NOBODY,
        {"library": "np.load"},
        "reader.engine=fast makes fewer and larger read calls than np.load does: on storage limited by requests a "
        "real job is slower; leave out reader.engine to get a real job's requests",
    ),
    (
        Issue.CALLS_NOT_KNOWN,
        {"format": "my.format"},
        "the module of format my.format does not declare how its library reads, so it was read in few large calls: "
        "on storage limited by requests a real job may be slower (docs/extending.md, open_called)",
    ),
    (
        Issue.STEPS_LOST,
        {"ranks": "ranks 1, 2", "host": "node1"},
        "the measurements of ranks 1, 2 on node1 are lost and missing from these numbers: either that host can't see "
        "the run's folder, where steps outlive their ranks (set output.folder to one that all hosts see), or it "
        "failed before its first step",
    ),
    (
        Issue.SAMPLES_DROPPED,
        {"samples": 1, "of_samples": 16, "batch_size": 3, "ranks": 1},
        "1 of 16 samples are dropped per epoch: they do not fill a batch of 3 on the one rank",
    ),
    (
        Issue.SAMPLES_DROPPED,
        {"samples": 2, "of_samples": 32, "batch_size": 3, "ranks": 2},
        "2 of 32 samples are dropped per epoch: they do not fill a batch of 3 on each of 2 ranks",
    ),
    (
        Issue.PREFETCH_BIAS,
        {"prefetched_steps": 5, "factor": 1.333},
        "up to 5 batches of an epoch are read during its first step, which AU does not count: if the storage is too "
        "slow, AU could be 1.33 times too high; use more files or fewer ranks",
    ),
    (
        Issue.HOST_LATE,
        {"percent": 75.0, "ranks": 1},
        "75 % of the wait came after the batch was ready in its worker: the host was late, not the storage; use "
        "more cores",
    ),
    (
        Issue.HOST_LATE,
        {"percent": 75.0},
        "75 % of the wait came after the batch was ready in its worker: the host was late, not the storage; use "
        "fewer ranks or more cores",
    ),
    (
        Issue.TELEMETRY_MISSING,
        {"host": "n1"},
        "telemetry of n1 is missing: its recorder was killed or stopped, or had no space, before it recorded anything",
    ),
    (
        Issue.TELEMETRY_CUT_SHORT,
        {"host": "n1", "from_seconds": 2.5, "to_seconds": 8.0},
        "telemetry is incomplete: n1 has none from 2.5 to 8.0 s of training; the recorder was killed or stopped, or "
        "had no core or no space",
    ),
    (
        Issue.TELEMETRY_CUT_SHORT,
        {"host": "n1", "from_seconds": 2.5, "to_seconds": 8.0, "end": "of training"},
        "telemetry is incomplete: n1 has none from 2.5 to 8.0 s of training, its end; the recorder was killed or "
        "stopped, or had no core or no space",
    ),
]


@pytest.mark.parametrize(("code", "numbers", "line"), ISSUES)
def test_an_issue_in_a_line(code: Issue, numbers: dict[str, Any], line: str) -> None:
    assert issue_lines([Finding(code, "caution", numbers)]) == (line,)


def warning(found: Finding | None, *shares: float) -> str | None:
    percent = Mean(mean=None, per_epoch=shares)
    return cache_warning(CacheProof(from_storage_percent=percent, dataset_to_memory=None, finding=found))


SERVED: dict[str, Any] = {
    "would_help": "reader.odirect, reader.evict_page_cache",
    "dataset_to_memory_ratio": 0.25,
    "from_storage_percent": 85.0,
    "least_percent": 85.0,
    "most_percent": 85.0,
}
HELP = "reader.odirect=true bypasses the page cache, reader.evict_page_cache=epochs empties it"


@pytest.mark.parametrize(
    ("code", "numbers", "shares", "line"),
    [
        (Cached.IN_MEMORY, {"file_system": "tmpfs"}, (), "MEASURED MEMORY, NOT STORAGE: the dataset is on tmpfs"),
        (
            Cached.NOT_READ,
            SERVED | {"from_storage_percent": 49.9, "would_help": "reader.odirect"},
            (49.9,),
            "MEASURED MEMORY, NOT STORAGE: the page cache served 50 % of the bytes; the dataset is 25 % of the "
            "hosts' memory; reader.odirect=true bypasses the page cache",
        ),
        (
            Cached.PARTLY_READ,
            SERVED,
            (85.0,),
            f"the page cache served 15 % of the bytes; the dataset is 25 % of the hosts' memory; {HELP}",
        ),
        (
            Cached.PARTLY_READ,
            SERVED | {"least_percent": 60.0, "most_percent": 150.0, "from_storage_percent": 105.0, "would_help": ""},
            (150.0, 100.4, 100.5, 100.9, 80.0, 60.0, 60.0),
            "the page cache served 0 % of the bytes (from storage in each epoch: 100 and 50 more by read-ahead, 100, "
            "100 and 0 more by read-ahead, 100 and 1 more by read-ahead, 80, 60 %); the dataset is 25 % of the hosts' "
            "memory; a dataset larger than every cache on the way is read from storage",
        ),
        (
            Cached.NOT_KNOWN,
            {"would_help": SERVED["would_help"], "dataset_to_memory_ratio": 4.99, "wanted_ratio": 5.0},
            (),
            "it is unknown whether the data came from storage: the dataset is 5 times the hosts' memory, and MLPerf "
            f"Storage requires 5 times; {HELP}",
        ),
    ],
)
def test_who_served_the_bytes_in_a_line(
    code: Cached, numbers: dict[str, Any], shares: tuple[float, ...], line: str
) -> None:
    severity = "loud" if code in (Cached.NOT_READ, Cached.IN_MEMORY) else "caution"
    assert warning(Finding(code, severity, numbers), *shares) == line  # type: ignore[arg-type]


def test_of_a_dataset_whose_hosts_memory_is_not_known_no_share_is_told() -> None:
    numbers = {name: value for name, value in SERVED.items() if name != "dataset_to_memory_ratio"}
    line = warning(Finding(Cached.PARTLY_READ, "caution", numbers), 85.0)
    assert line == (
        f"the page cache served 15 % of the bytes; the dataset is an unknown share of the hosts' memory; {HELP}"
    )
    assert warning(None) is None


def test_one_rank_is_not_advised_to_be_fewer() -> None:
    numbers: dict[str, Any] = {"by": "au", "au_percent": 89.0, "threshold_percent": 90.0, "ceiling_au_percent": 80.0}
    numbers |= {"kept_steps": 3, "prefetched_steps": 4}
    for code in (VerdictCode.EMULATOR_TOO_SLOW, VerdictCode.TOO_FEW_STEPS, VerdictCode.SUPPLY_NOT_KNOWN):
        alone, several = (verdict_line(Verdict(code, numbers), ranks) for ranks in (1, 2))
        assert "fewer ranks" in several
        assert "ranks" not in alone
    to_do = (Advice.MORE_CORES, Advice.RAISE_CPU_LIMIT, Advice.RELIEVE_EMULATOR, Advice.FREE_MEMORY)
    limit = Limit(what="host CPU", confidence="high", seen=(), to_do=tuple(map(Finding, to_do)))
    assert all("ranks" in advice for advice in in_words(limit, 2).advice)
    assert not any("ranks" in advice for advice in in_words(limit, 1).advice)
    bias = Finding(Issue.PREFETCH_BIAS, "caution", {"prefetched_steps": 4, "factor": 1.3, "ranks": 1})
    assert issue_lines([bias])[0].endswith("use more files")
