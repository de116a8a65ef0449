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
        "PASS: AU 96.50 % is at least 90 %, by 16.5 points of prefetch: the storage sustains 80.0 %",
    ),
    (
        VerdictCode.FAIL,
        AU | {"by": "sustained", "au_percent": 80, "headline_au_percent": 96.5, "sustained_au_percent": 80.0},
        "FAIL: sustained AU 80.00 % is below 90 %; the counted steps' AU, 96.50 %, would pass by 16.5 points of "
        "prefetch",
    ),
    (VerdictCode.FAIL, AU | {"by": "rules"}, "FAIL: AU of whole epochs 89.50 % is below 90 %"),
    (
        VerdictCode.UNDECIDED,
        AU | {"uncertainty_percent": 1.0, "epochs": 20},
        "UNDECIDED: AU 89.50 +- 1.00 % is too near to 90 %; run longer: train.epochs=20",
    ),
    (VerdictCode.INCOMPLETE, {}, "NO VERDICT: the run did not complete"),
    (
        VerdictCode.NOTHING_COMPUTED,
        {},
        "NO VERDICT: nothing computed (train.computation_time is 0, or every step was excluded)",
    ),
    (
        VerdictCode.EMULATOR_TOO_SLOW,
        AU | {"ceiling_au_percent": 80.0},
        "NO VERDICT on the storage: AU 89.50 % is below 90 %, but on this host the emulator reaches only 80.00 % "
        "without any storage; use fewer ranks or a host with more cores",
    ),
    (
        VerdictCode.CACHE_SERVED,
        AU | {"from_storage_percent": 50.0},
        "NO VERDICT: the storage served 50 % of the bytes (AU 89.50 %); read past the page cache or empty it, or say "
        "metric.cached=true to judge all the same",
    ),
    (
        VerdictCode.TOO_FEW_STEPS,
        AU | {"kept_steps": 2, "prefetched_steps": 5},
        "NO VERDICT: only 2 steps of an epoch count, and up to 5 batches are read while its first step waits, which "
        "does not count: use more files, or fewer ranks",
    ),
    (
        VerdictCode.SUPPLY_NOT_KNOWN,
        AU,
        "NO VERDICT: all batches of an epoch are read at once as it begins, of which the storage gives AU 89.50 % at "
        "least, and what it sustains is not known: use more files, or fewer ranks",
    ),
    (
        VerdictCode.HOST_LIMITED,
        AU | {"limited_by": "memory"},
        "NO VERDICT on the storage: AU 89.50 % is below 90 %, but the host's memory is the limit, so the storage may "
        "give more than was asked of it; relieve the host and run again",
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
        "on null storage the emulator reaches 52.1 % on this host, and 40.0 % on the dataset",
    ),
    (Seen.CORES_WERE_FREE, {}, "cores were free"),
    (Seen.CACHE_SERVED, {}, "the page cache served the bytes, and cores were free"),
    (
        Seen.READS,
        {"readers": 16.0, "call_ms": 12.3456, "call_bytes": 1023 * 2**10},
        "16.0 of the workers were in a read at a time then, 12.3 ms for each call of 1,023.0 KiB",
    ),
    (
        Seen.READS,
        {"readers": 1.0, "call_ms": 1.0, "call_bytes": 2**20},
        "1.0 of the workers were in a read at a time then, 1 ms for each call of 1.0 MiB",
    ),
    (
        Seen.RATES,
        {"given_mb_per_second": 1234.56, "wanted_mb_per_second": 5432.19},
        "the storage gave 1,234.6 MB/s; the accelerators ask for 5,432.2 MB/s",
    ),
    (
        Seen.DEVICE,
        {"busy_percent": 93.4, "depth": 7.25},
        "the device was busy 93 % of the time, 7.2 requests at a time",
    ),
    (
        Seen.DEVICE,
        {"busy_percent": 93.4, "depth": 7.25, "written_mb_per_second": 61.8},
        "the device was busy 93 % of the time, 7.2 requests at a time; 61.8 MB/s were written to it",
    ),
    (
        Seen.ANSWERS,
        {"first_byte_ms": 1.234, "last_byte_ms": 5.678},
        "the server's first byte came after 1.23 ms, the last after 5.68 ms (medians)",
    ),
    (
        Seen.SLOW_DOWN,
        {"answers": 1200, "percent": 40.0},
        "the server said 1,200 times that it is asked too much (503), 40 %",
    ),
    (Seen.RETRIED, {"retried": 1500, "requests": 3000}, "1,500 of 3,000 requests were asked again"),
    (Seen.NETWORK, {"percent": 44.4}, "the network interface received 44 % of what it can"),
    (
        Seen.OTHER_READERS,
        {"mb_per_second": 52.25, "percent": 38.4},
        "storage shared with others: others read 52.2 MB/s from the same device (38 % of what it gave)",
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
        "right after the run 4 readers got 40.0 MB/s, and by requests of 4,194,304 bytes 120.0 MB/s, 3.00 times as "
        "much",
    ),
    (
        Seen.OUT_OF_ORDER,
        {"batches": 13.4},
        "batches come in order: when a wait was over, 13.4 later ones lay ready behind the slow one",
    ),
    (
        Seen.DEEPER_QUEUE,
        {"prefetch_size": 32, "now": 16, "au_percent": 81.0, "now_au_percent": 60.8},
        "the same reads with 32 batches ahead instead of 16 give 81.0 % in place of 60.8 % (AU over whole epochs, "
        "event model)",
    ),
    (
        Seen.STUCK_BEFORE_DEVICE,
        {},
        "most of the reads waited before the device: a limit on the way to it (cgroup, network)",
    ),
    (Seen.DEVICE_HAD_FEW, {"depth": 1.2}, "the device had only 1.2 requests at a time"),
    (
        Seen.DEVICE_NEVER_IDLE,
        {"depth": 1.2},
        "the device had only 1.2 requests at a time and was never idle; metric.scaling_seconds=1 would tell",
    ),
    (Seen.FEW_SMALL_READS, {"readers": 3.0}, "only 3.0 small reads were under way at a time"),
    (Seen.STARVED, {"percent": 14.4}, "workers wanted a core and had none in 14 % of their work"),
    (Seen.CORES, {"percent": 42.0}, "42 % of the cores' time was in use"),
    (Seen.CORES, {"percent": 99.0, "own_percent": 20.0}, "99 % of the cores' time was in use, 20 % by this run"),
    (Seen.TLS, {"percent": 72.0}, "reading over TLS (decrypting, copying) took 72 % of the readers' CPU time"),
    (
        Seen.CPU_LIMIT,
        {"used_cores": 1.9, "limit_cores": 2.0},
        "the run used 1.9 of the 2.0 cores that its CPU limit allows",
    ),
    (Seen.THROTTLED, {"percent": 80.0}, "the limit held it back in 80 % of its periods"),
    (
        Seen.FIRST_STEPS_TOO,
        {},
        "judged with the first steps, during which batches of later ones were read ahead",
    ),
]
OF_THE_WAIT: list[tuple[Seen, str]] = [
    (Seen.BLOCKED_IN_READS, "in 80 % of that a worker was blocked in a read"),
    (Seen.COMPUTING, "in 80 % of that a worker was computing (decoding, copying) or wanted a core"),
    (Seen.PREPROCESSING, "in 80 % of that a worker was in reader.preprocess_time"),
    (Seen.NOT_BEGUN, "in 80 % of that the batch was not begun though workers had time"),
    (Seen.LAY_READY, "in 80 % of that the batch lay ready in its worker"),
    (Seen.MEMORY_PRESSURE, "some task of the host waited for memory 80 % of the time (pressure)"),
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
        "too few readers: more reader.read_threads (now 5) would help",
    ),
    (
        Advice.MORE_REQUESTS,
        {"read_threads": 5},
        "too few readers: more reader.read_threads (now 5) or a larger reader.io_depth would help",
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
        "too many readers: reader.read_threads=1 (now 4) gets more of this storage",
    ),
    (
        Advice.LARGER_REQUESTS,
        {"transfer_size": 4 << 20},
        "larger requests get more of this storage: reader.transfer_size=4194304",
    ),
    (
        Advice.DEEPER_QUEUE,
        {"prefetch_size": 32, "now": 16, "au_percent": 81.0, "now_au_percent": 60.8},
        "more batches ahead: reader.prefetch_size=32 (now 16)",
    ),
    (
        Advice.TRY_MORE_READERS,
        {"read_threads": 5},
        "to rule out too few readers, try more reader.read_threads (now 5)",
    ),
    (
        Advice.MORE_WORKERS,
        {"read_threads": 5},
        "more reader.read_threads (now 5) would help: the work of one batch is one worker's",
    ),
    (Advice.READ_AHEAD, {}, "more batches ahead: a larger reader.prefetch_size, or more reader.read_threads"),
    (Advice.FASTER_STORAGE, {}, "faster storage, or fewer accelerators on it"),
    (Advice.FASTER_NETWORK, {}, "a faster network between host and server, or fewer accelerators on it"),
    (
        Advice.STOP_OTHER_READERS,
        {},
        "stop what else reads from the device (iotop), or count it in: it is not the storage's whole speed",
    ),
    (
        Advice.COOL_DRIVE,
        {"drive": "nvme0", "celsius": 84.2, "limit_celsius": 80.2},
        "cool the drive: nvme0 reached 84 degrees Celsius, and from 80 on it slows itself down",
    ),
    (
        Advice.SPEED_THAT_LASTS,
        FASTER | {"times": 1},
        "count on 1,234 MB/s, the speed that lasts: the first 12.3 GB came faster, as from a cache or a burst credit "
        "of that size that ran out; a second run after a pause would tell it from others on the drive",
    ),
    (
        Advice.SPEED_THAT_LASTS,
        FASTER | {"times": 2},
        "count on 1,234 MB/s, the speed that lasts: the first 12.3 GB came faster, 2 times, as from a cache or a "
        "burst credit of that size that ran out",
    ),
    (
        Advice.BECAME_SLOWER,
        {"at_seconds": 66.0},
        "see why the storage became slower at 01:06 and stayed so: others on it, a drive that is too hot or busy with "
        "itself; the speed that lasts is the one to count on",
    ),
    (
        Advice.SLOW_FOLDER,
        {"folder": "b7", "ms_per_sample": 40.44, "others_ms_per_sample": 5.05, "folders": 1},
        "see where the folder b7 lies: a sample of it takes 40.4 ms, of the others 5.05 ms",
    ),
    (
        Advice.SLOW_FOLDER,
        {"folder": "b7", "ms_per_sample": 40.0, "others_ms_per_sample": 5.0, "folders": 2},
        "see where the folder b7 lies: a sample of it takes 40 ms, of the others 5 ms, and 1 more",
    ),
    (
        Advice.SLOW_HOSTS,
        {"hosts": "n1, n2"},
        "see to host n1, n2: all others wait for its reads (its mount, network or drive)",
    ),
    (
        Advice.STOOD_STILL,
        {"times": 1},
        "see why the storage stood still: the drive's or the file system's own work, the network, others",
    ),
    (Advice.MORE_CORES, {}, "more cores or fewer ranks on this host; look at reader.decode and verify"),
    (
        Advice.RAISE_CPU_LIMIT,
        {},
        "raise the CPU limit of this container or job (cgroup), or use fewer ranks; look at reader.decode",
    ),
    (
        Advice.STOP_OTHER_PROGRAMS,
        {},
        "other programs have most of the cores: stop them (top), or run where nothing else does",
    ),
    (
        Advice.RELIEVE_EMULATOR,
        {},
        "the number says little about the storage: fewer ranks on this host, or a host with more cores",
    ),
    (
        Advice.FREE_MEMORY,
        {},
        "lower reader.read_threads, reader.prefetch_size or ranks, or stop what else fills the memory",
    ),
]
BESIDES: list[tuple[Advice, str]] = [
    (Advice.RAISE_CPU_LIMIT_TOO, "raise the CPU limit of this container or job (cgroup), too"),
    (Advice.LOOK_FOR_PROGRAMS, "look for other programs (top)"),
    (Advice.WITHOUT_TLS, "http:// instead of https:// saves what TLS takes, on a network that is trusted"),
]


@pytest.mark.parametrize(("code", "numbers", "line"), ADVICE)
def test_advice_in_a_line(code: Advice, numbers: dict[str, Any], line: str) -> None:
    assert told(to_do=(Finding(code, numbers=numbers),)).advice == (line,)


@pytest.mark.parametrize(("code", "line"), BESIDES)
def test_advice_that_comes_on_top_goes_on_with_the_sentence_before(code: Advice, line: str) -> None:
    advice = told(to_do=(Finding(Advice.STOP_OTHER_PROGRAMS), Finding(code))).advice
    assert advice == (
        f"other programs have most of the cores: stop them (top), or run where nothing else does; {line}",
    )


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
        "reader.engine=fast makes fewer and larger read calls than np.load does: on storage that requests limit, a "
        "real job is slower than this; leave reader.engine out for a real job's requests",
    ),
    (
        Issue.CALLS_NOT_KNOWN,
        {"format": "my.format"},
        "format my.format does not say how its library reads, so it was read by few large calls: on storage that is "
        "limited by requests a real job may be slower (docs/extending.md, open_called)",
    ),
    (
        Issue.STEPS_LOST,
        {"ranks": "ranks 1, 2", "host": "node1"},
        "what ranks 1, 2 on node1 measured is lost and not in these numbers: that host does not see the run's folder, "
        "where steps outlive their ranks (set output.folder to one that all hosts see), or was lost before its first "
        "step",
    ),
    (
        Issue.SAMPLES_DROPPED,
        {"samples": 1, "of_samples": 16, "batch_size": 3, "ranks": 1},
        "1 of 16 samples are dropped each epoch: they do not fill a batch of 3 on the one rank",
    ),
    (
        Issue.SAMPLES_DROPPED,
        {"samples": 2, "of_samples": 32, "batch_size": 3, "ranks": 2},
        "2 of 32 samples are dropped each epoch: they do not fill a batch of 3 on each of 2 ranks",
    ),
    (
        Issue.PREFETCH_BIAS,
        {"prefetched_steps": 5, "factor": 1.333},
        "up to 5 of an epoch's batches are read while its first step waits, which AU leaves out: were the storage too "
        "slow, AU could be 1.33 times too high; use more files or fewer ranks",
    ),
    (
        Issue.HOST_LATE,
        {"percent": 75.0},
        "75 % of the waiting passed after the batch was ready in its worker: the host, not the storage, was late; use "
        "fewer ranks or more cores",
    ),
    (
        Issue.TELEMETRY_MISSING,
        {"host": "n1"},
        "telemetry of n1 is missing: its recorder was killed or stopped before it read anything",
    ),
    (
        Issue.TELEMETRY_CUT_SHORT,
        {"host": "n1", "from_seconds": 2.5, "to_seconds": 8.0},
        "telemetry is cut short: nothing was read on n1 from 2.5 to 8.0 s of training; the recorder was killed or "
        "stopped, or had no core",
    ),
    (
        Issue.TELEMETRY_CUT_SHORT,
        {"host": "n1", "from_seconds": 2.5, "to_seconds": 8.0, "end": "of training"},
        "telemetry is cut short: nothing was read on n1 from 2.5 to 8.0 s of training, its end; the recorder was "
        "killed or stopped, or had no core",
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
HELP = "reader.odirect=true reads past the page cache, reader.evict_page_cache=epochs empties it"


@pytest.mark.parametrize(
    ("code", "numbers", "shares", "line"),
    [
        (Cached.IN_MEMORY, {"file_system": "tmpfs"}, (), "STORAGE WAS NOT READ: the dataset lies in memory (tmpfs)"),
        (
            Cached.NOT_READ,
            SERVED | {"from_storage_percent": 49.9, "would_help": "reader.odirect"},
            (49.9,),
            "STORAGE WAS NOT READ: the page cache served 50 % of the bytes; the dataset is 0.25 times the hosts' "
            "memory; reader.odirect=true reads past the page cache",
        ),
        (
            Cached.PARTLY_READ,
            SERVED,
            (85.0,),
            f"the page cache served 15 % of the bytes; the dataset is 0.25 times the hosts' memory; {HELP}",
        ),
        (
            Cached.PARTLY_READ,
            SERVED | {"least_percent": 60.0, "most_percent": 150.0, "from_storage_percent": 105.0, "would_help": ""},
            (150.0, 100.4, 100.5, 100.9, 80.0, 60.0, 60.0),
            "the page cache served 0 % of the bytes (from storage in each epoch: 100 and 50 more read ahead, 100, 100 "
            "and 0 more read ahead, 100 and 1 more read ahead, 80, 60 %); the dataset is 0.25 times the hosts' memory; "
            "a dataset larger than every cache on the way is read from storage",
        ),
        (
            Cached.NOT_KNOWN,
            {"would_help": SERVED["would_help"], "dataset_to_memory_ratio": 4.99, "wanted_ratio": 5.0},
            (),
            "it is not known whether the storage was read: the dataset is 5 times the hosts' memory, and MLPerf "
            f"Storage asks for 5; {HELP}",
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
