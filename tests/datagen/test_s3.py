"""What an S3 server may do wrong, and what a user is told; what goes over the wire, and that no key gets out."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen import manifest
from datagen.errors import DatasetError, ServerError, UserError
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import inspect
from datagen.layout import Layout
from datagen.scan import sizes_on_disk
from datagen.spec import DatasetSpec
from datagen.storage import _http_exchange, _request_counts, _s3_client
from datagen.storage._s3_access import EMPTY_SHA256, Signer, query_text
from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage, read_whole
from tests.datasets import make_files
from tests.object_server import ObjectServer
from tests.object_stores import ACCESS_KEY, BUCKET, S3, SECRET_KEY, fault, own_server, storage_of

pytestmark = pytest.mark.usefixtures("keys")
DATA = bytes(range(256)) * 2000


def counts_of(storage: StorageBase) -> Any:
    return storage.counts  # type: ignore[attr-defined]


def write(storage: StorageBase, path: str, data: bytes = DATA) -> None:
    writer = storage.create(path)
    writer.write(data)
    writer.commit()


def read(storage: StorageBase, path: str, *, whole: bool = True, most_bytes: int = 2 * len(DATA)) -> bytes:
    buffer = memoryview(bytearray(most_bytes + 10))
    if whole:
        ((size, got, _),) = storage.read_files([(path, buffer)])
        assert size == got
    else:
        got = storage.open(path).read_into(buffer, 0)
    return bytes(buffer[:got])


def first_of(kind: str, method: str, times: int, **words: Any) -> Callable[[Any], Any]:
    turns = iter(range(times))
    return lambda request: fault(kind, **words) if request.method == method and next(turns, None) is not None else None


TROUBLES: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "error", {"status": 503}),
    ("GET", "error", {"status": 500, "code": "InternalError"}),
    ("GET", "error", {"status": 429, "code": "SlowDown"}),
    ("GET", "error", {"status": 400, "code": "RequestTimeout"}),
    *(("GET", kind, {}) for kind in ("drop", "cut", "hang", "drip", "garbage")),
    ("PUT", "error", {"status": 503}),
    ("PUT", "error", {"status": 400, "code": "XAmzContentSHA256Mismatch"}),  # it did not arrive as it was sent
    ("PUT", "drop", {}),
    ("PUT", "hang", {}),
    ("POST", "error", {"status": 500, "code": "InternalError"}),
    ("POST", "error", {"status": 200, "code": "InternalError"}),  # a success that turns out to be none
]


@pytest.mark.parametrize(("method", "kind", "words"), TROUBLES, ids=str)
@pytest.mark.parametrize("range_bytes", [0, 100_000])
def test_what_goes_wrong_twice_is_asked_again_and_counted(
    server: Any, method: str, kind: str, words: dict[str, Any], range_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datagen.storage.s3.PART_BYTES", 200_000)
    storage = storage_of(server, options={"timeout_seconds": 0.4}, range_bytes=range_bytes, io_depth=3)
    server.behaviour.fault = first_of(kind, method, times=2, **words)
    write(storage, "a")
    assert read(storage, "a") == server.objects["a"] == DATA
    assert counts_of(storage)["retried"] == counts_of(storage)["failed"] == 2
    assert counts_of(storage)["slow_down"] == (2 if words.get("status") in (503, 429) else 0)
    assert counts_of(storage)["in_flight"] == 0


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("error", "503 SlowDown"),
        ("drop", "the server closed the connection without a response"),
        ("cut", f"the response ended after {len(DATA) // 2} of {len(DATA)} bytes"),
        ("hang", r"no response arrived within 0\.2 s"),
        ("drip", r"no more than 64 KiB arrived within 0\.2 s"),
        ("garbage", "the response begins with 'SSH-2.0-OpenSSH_9.2p1', which is not HTTP"),
    ],
)
def test_what_goes_wrong_always_ends_with_what_it_was(server: Any, kind: str, reason: str) -> None:
    storage = storage_of(server, options={"timeout_seconds": 0.2, "s3_max_attempts": 2})
    write(storage, "a")
    server.behaviour.fault = first_of(kind, "GET", times=99)
    began = time.monotonic()
    words = rf"GET s3://bucket/a at http://.* failed 2 times, the last time because of: {reason}\. Check whether"
    with pytest.raises(DatasetError, match=words):
        read(storage, "a")
    assert time.monotonic() - began < 55, "two attempts that wait as long as by default take 60 s"
    assert counts_of(storage)["in_flight"] == counts_of(storage)["connections_open"] - len(_idle(storage)) == 0


def _idle(storage: Any) -> Any:
    return storage.client._idle


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "NoSuchBucket", "there is no bucket 'bucket' at http://.*: make it, or set storage.storage_root"),
        (403, "InvalidAccessKeyId", "the server does not accept these credentials. They come from: AWS_ACCESS_KEY_ID"),
        (400, "InvalidToken", "the credentials have expired and can't be renewed"),
        (403, "QuotaExceeded", "the bucket is full: raise its quota, remove objects, or use another"),
        (507, "XMinioStorageFull", "the bucket is full"),
        (403, "AccessDenied", "these credentials are not allowed to do that: let them list, read and write"),
        (301, "PermanentRedirect", "the bucket is in region 'eu-west-1': set .*region"),
        (301, "", "the bucket is in another region: set .*region"),
        (405, "MethodNotAllowed", r"405 MethodNotAllowed \(as asked\): the server refuses .*; wanted an S3 server"),
        (403, "RequestTimeTooSkewed", r"the clocks of this host and of the server differ too much: set them \(ntp\)"),
        (403, "ExpiredToken", "the credentials have expired and can't be renewed"),
    ],
)
def test_what_is_no_use_asking_again_is_told_at_once(status: int, code: str, words: str) -> None:
    headers = {"x-amz-bucket-region": "eu-west-1"} if code == "PermanentRedirect" else {}
    with own_server(fault=lambda request: fault("error", status=status, code=code, headers=headers)) as server:
        storage = storage_of(server)
        with pytest.raises(UserError, match=words) as told:
            storage.is_folder("data")
        assert len(server.requests) == 1
        assert SECRET_KEY not in str(told.value)
        if code in ("RequestTimeTooSkewed", "ExpiredToken", "AccessDenied"):
            with pytest.raises(ServerError, match=words):  # nothing is said to be damaged, though a HEAD has no body
                manifest.read("data", storage)
            assert len(server.requests) < 9


def test_an_object_that_stops_after_it_came_steadily_is_given_up(server: Any) -> None:
    """What came in all the time before is no excuse for the time-out in which nothing came."""
    over = threading.Event()

    def stopping() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n" % (2 * len(DATA))
        for at in range(0, len(DATA), 50_000):  # for more than two time-outs, some 200 KB in each
            yield DATA[at : at + 50_000]
            over.wait(0.05)
        over.wait(20)

    storage = storage_of(server, options={"timeout_seconds": 0.2, "s3_max_attempts": 1})
    server.objects["a"] = 2 * DATA
    server.behaviour.fault = lambda request: fault("raw", raw=stopping()) if request.method == "GET" else None
    try:
        with pytest.raises(DatasetError, match=r"because of: no more than 64 KiB arrived within 0\.2 s"):
            read(storage, "a", whole=False)
    finally:
        over.set()


@pytest.mark.parametrize(
    ("later", "pauses"),
    [
        ({}, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20, 20]),
        ({"Retry-After": "3"}, [3, 3, 3, 3, 3, 3.2, 6.4, 12.8, 20, 20]),
        ({"Retry-After": "3600"}, 10 * [20]),
    ],
    ids=str,
)
def test_pauses_double_up_to_20_seconds_or_are_as_long_as_the_server_says(
    later: dict[str, str], pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []
    seconds = {"monotonic": lambda: sum(taken), "monotonic_ns": lambda: round(1e9 * sum(taken))}
    clock = SimpleNamespace(**{**vars(time), **seconds, "sleep": taken.append})  # which stands still but for sleeps
    for module in (_s3_client, _http_exchange):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(random, "uniform", lambda low, high: high if (low, high) == (0.5, 1) else 0)
    with own_server(fault=lambda request: fault("error", headers=later)) as server:
        storage = storage_of(server, options={"s3_max_attempts": 11, "timeout_seconds": 600})
        with pytest.raises(UserError, match="failed 11 times"):
            read(storage, "a")
        assert len(server.requests) == 11
    assert taken == pytest.approx(pauses)


def test_a_connection_serves_requests_until_the_server_closes_it(server: Any) -> None:
    storage = storage_of(server)
    write(storage, "a")
    for _ in range(3):
        assert read(storage, "a") == DATA
    assert server.connections == counts_of(storage)["connections_opened"] == 1
    for connection in list(server._open):
        connection.shutdown(socket.SHUT_RDWR)
    assert read(storage, "a") == DATA
    assert server.connections == counts_of(storage)["connections_opened"] == 2
    assert counts_of(storage)["connections_open"] == 1
    with pytest.raises(FileNotFoundError):
        storage.remove("of no earlier run")
    assert counts_of(storage)["failed"] == 0


def test_several_servers_have_connections_by_turns() -> None:
    all_in_flight = threading.Barrier(4, timeout=60)

    def meet(request: Any) -> None:
        if request.method == "GET":
            all_in_flight.wait()

    with own_server(fault=meet) as one, own_server(fault=meet) as other:
        one.objects["a"] = other.objects["a"] = DATA
        endpoint = f"{one.endpoint},{other.endpoint}"
        storage = storage_of(one, options={"endpoint_url": endpoint}, range_bytes=len(DATA) // 4, io_depth=4)
        assert read(storage, "a", whole=False) == DATA
        assert (one.connections, other.connections) == (2, 2)


def test_sizes_of_a_datasets_files_are_taken_from_the_listing(server: Any) -> None:
    layout = Layout(folder="set/train", split="train", num_files=1500, num_samples_per_file=1, extension="png")
    for file in range(layout.num_files):
        server.objects[layout.path(file)] = bytes(file % 7)
    storage = storage_of(server)
    assert sizes_on_disk(layout, storage).tolist() == [file % 7 for file in range(layout.num_files)]
    assert [request.method for request in server.requests] == ["GET"] * 2, "two pages"
    del server.objects[layout.path(9)]
    with pytest.raises(FileNotFoundError, match=layout.path(9)):
        sizes_on_disk(layout, storage)


def test_a_server_that_goes_down_in_mid_run_is_asked_again_and_named() -> None:
    with own_server() as server:
        storage = storage_of(server, options={"s3_max_attempts": 3})
        write(storage, "a")
        assert read(storage, "a") == DATA
        objects, port = server.objects, int(server.endpoint.rpartition(":")[2])
    with pytest.raises(DatasetError, match=r"GET s3://bucket/a at http://.* failed 3 times, .*refused"):
        read(storage, "a")
    patient = storage_of(server, options={"s3_max_attempts": 9})
    restarted = threading.Timer(0.3, lambda: servers.append(ObjectServer(port=port)))
    servers: list[Any] = []
    restarted.start()
    try:
        write(patient, "b")
        servers[0].objects |= objects
        assert read(patient, "a") == DATA
        assert counts_of(patient)["retried"] >= 1
    finally:
        restarted.join()
        servers[0].close()


def test_a_profile_that_is_named_comes_before_keys_of_the_environment(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("botocore")
    (tmp_path / "credentials").write_text("[p]\naws_access_key_id = of-p\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for options, key in (({}, ACCESS_KEY), ({"s3_profile": "p"}, "of-p")):
        storage_of(server, options=options).is_folder("data")
        assert f"Credential={key}/" in server.requests[-1].headers["authorization"]
        assert "x-amz-security-token" not in server.requests[-1].headers


def test_an_object_that_changes_while_it_is_read_or_behind_its_first_range_is_told(server: Any) -> None:
    def change(request: Any) -> None:
        server.objects |= {"a": DATA[::-1]} if request.headers.get("range") != "bytes=0-999" else {}

    for range_bytes, whole in ((1000, True), (1000, False), (0, False)):
        storage = storage_of(server, range_bytes=range_bytes)
        server.behaviour.fault = None
        write(storage, "a")
        reader = storage.open("a")
        server.behaviour.fault = change
        with pytest.raises(DatasetError, match="changed while it was read"):
            read(storage, "a") if whole else reader.read_into(memoryview(bytearray(5000)), 0)
    reader = storage.open("a")
    server.behaviour.fault = lambda request: fault("etag")
    with pytest.raises(DatasetError, match=r"changed while it was read \(its ETag was "):
        reader.read_into(memoryview(bytearray(5000)), 0)


def test_an_object_is_one_request_and_ranges_are_as_many_as_asked(server: Any) -> None:
    write(storage_of(server), "a")
    for range_bytes, ranges in ((0, [""]), (200_000, ["0-199999", "200000-399999", "400000-511999"])):
        server.requests.clear()
        storage = storage_of(server, range_bytes=range_bytes, io_depth=2)
        assert read(storage, "a") == DATA
        asked = [request.headers.get("range", "").removeprefix("bytes=") for request in server.requests]
        assert {request.method for request in server.requests} == {"GET"}
        assert sorted(asked) == ranges


def test_requests_are_counted_by_what_they_are_and_timed() -> None:
    began = time.monotonic()
    with own_server(latency_seconds=0.02) as server:
        storage = storage_of(server, options={"timeout_seconds": 60})
        write(storage, "a/1")
        assert read(storage, "a/1") == DATA
        assert storage.size_bytes("a/1") == len(DATA)
        with storage.entries("a") as entries:
            assert len(list(entries)) == 1
        storage.remove("a/1")
    counts = counts_of(storage)
    assert {kind: counts[kind] for kind in ("put", "get", "head", "list", "delete")} == {
        "put": 1, "get": 1, "head": 2, "list": 1, "delete": 1,
    }  # fmt: skip
    first, last = (_request_counts.waits_ms(times) for times in (counts.first_byte, counts.last_byte))
    assert first is not None
    assert last is not None
    assert 20 <= first.p50 <= last.p50 * 1.1 <= 1100 * (time.monotonic() - began) * 1.1


@given(
    size=st.integers(1, 5000),
    pieces=st.lists(st.integers(1, 900), min_size=1),
    skip=st.integers(0, 300),
    part=st.just(512),
)
def test_an_upload_in_parts_is_what_was_written(size: int, pieces: list[int], skip: int, part: int) -> None:
    with own_server() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("datagen.storage.s3.PART_BYTES", part)
        writer = storage_of(server).create("a")
        writer.skip(skip)
        wanted, at = bytearray(skip), 0
        while at < size:
            piece = DATA[at : at + pieces[at % len(pieces)]]
            writer.write(piece)
            wanted += piece
            at += len(piece)
        writer.write_at(b"x" * skip, 0)
        wanted[:skip] = b"x" * skip
        assert "a" not in server.objects
        writer.commit()
        writer.discard()
        assert server.objects["a"] == wanted
        assert len(wanted) <= part or server.count("PUT") > 1


@pytest.mark.parametrize("checksums", [True, False])
def test_what_is_written_has_its_checksum_unless_the_option_says_otherwise(server: Any, checksums: bool) -> None:
    """ "UNSIGNED-PAYLOAD" is the word of the API's reference; a server refuses any other."""
    write(storage_of(server, options={} if checksums else {"checksum_writes": False}), "a")
    (request,) = server.requests
    wanted = hashlib.sha256(DATA).hexdigest() if checksums else "UNSIGNED-PAYLOAD"
    assert request.headers["x-amz-content-sha256"] == wanted


def test_threads_write_one_object(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a checkpoint's writers do: each part is sent once, in one upload."""
    monkeypatch.setattr("datagen.storage.s3.PART_BYTES", 20_000)
    turns, of_two_threads = iter(range(5)), threading.Barrier(5, timeout=60)  # a thread has 4 parts in flight

    def meet(request: Any) -> None:
        if request.method == "PUT" and next(turns, None) is not None:
            of_two_threads.wait()

    server.behaviour.fault = meet
    writer = storage_of(server).create("a")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda at: writer.write_at(DATA[at : at + 5_000], at), range(0, len(DATA), 5_000)))
    writer.commit()
    assert server.objects == {"a": DATA}
    assert Counter(request.method for request in server.requests) == {"POST": 2, "PUT": -(-len(DATA) // 20_000)}


def test_uploads_under_way_are_counted_and_ended_for_the_named_files_alone(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datagen.storage.s3.PART_BYTES", 1000)
    storage = storage_of(server)
    for key in ("data/a", "data/a", "data/b", "data/below/a", "a"):
        storage.create(key).write(DATA)
    assert (storage.uploads("data/", ["a", "c"]), len(server.uploads)) == (2, 5)
    assert storage.uploads("data", ["a", "c"], end=True) == 2
    assert sorted(upload.key for upload in server.uploads.values()) == ["a", "data/b", "data/below/a"]


def test_keys_of_both_layouts_and_prefixes(server: Any) -> None:
    write(storage_of(server), "./data/a", b"1")
    write(storage_of(server, root="bucket/below"), "data/a", b"2")
    write(storage_of(server, root="s3://bucket"), "s3://bucket/uri/a", b"3")
    argonne = storage_of(server, options={"use_full_object_uri": True})
    write(argonne, "s3://bucket/data/train/a", b"4")
    assert set(server.objects) == {"data/a", "below/data/a", "uri/a", "s3://bucket/data/train/a"}
    assert bytes(read_whole(argonne, "data/train/a")) == b"4"
    with argonne.entries("s3://bucket/data") as entries:
        assert [(entry.name, entry.is_dir()) for entry in entries] == [("train", True)]


def test_the_signature_is_botocores(monkeypatch: pytest.MonkeyPatch) -> None:
    auth, awsrequest, credentials = (
        pytest.importorskip(f"botocore.{name}") for name in ("auth", "awsrequest", "credentials")
    )
    now = [1_800_000_000.9]
    monkeypatch.setattr("datagen.storage._s3_access.time.time", lambda: now[0])
    query = [("prefix", "a b/ü&="), ("list-type", "2"), ("uploads", "")]
    for token in ("token/+=", ""):
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
        signer = Signer("", "eu-west-1")
        for seconds, method, host, path, asked, payload in (
            (0, "GET", "host:9000", "/bucket/a%20b", query, EMPTY_SHA256),
            (0, "PUT", "host:9000", "/bucket/other", [], "UNSIGNED-PAYLOAD"),  # what of a second is kept is its own
            (0, "GET", "host:9001", "/bucket/a", [], EMPTY_SHA256),
            (0, "GET", "host:9000", "/bucket/a", [], EMPTY_SHA256),
            (1, "GET", "host:9000", "/bucket/a", [], EMPTY_SHA256),
            (86_400, "GET", "host:9000", "/bucket/a", [], EMPTY_SHA256),
        ):
            now[0] += seconds
            lines = signer.lines(method, host, path, query_text(asked), payload)
            ours = dict(line.split(": ", 1) for line in lines.splitlines())
            request = awsrequest.AWSRequest(method, f"http://{host}{path}", params=dict(asked))
            for name, value in ours.items():
                if name.startswith("x-amz-"):
                    request.headers[name] = value
            theirs = auth.S3SigV4Auth(credentials.Credentials(ACCESS_KEY, SECRET_KEY, token or None), "s3", "eu-west-1")
            request.context["timestamp"] = ours["x-amz-date"]
            assert ours["x-amz-date"] == time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now[0]))
            text = theirs.string_to_sign(request, theirs.canonical_request(request))
            assert ours["authorization"].rpartition("Signature=")[2] == theirs.signature(text, request)
            assert f"{ours['x-amz-date'][:8]}/eu-west-1/s3/aws4_request" in ours["authorization"]


def test_a_real_server_refuses_a_wrong_key_and_an_unknown_bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="there is no bucket 'nobucket' at"):
        open_storage(s3.spec(root="nobucket")).is_folder("data")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(UserError, match="the server does not accept these credentials"):
        open_storage(s3.spec()).is_folder("data")


def test_a_real_server_finds_the_signature_right_whatever_the_key(s3: S3) -> None:
    storage = open_storage(s3.spec())
    for key in ("a+b", "a b", "a%2Bb", "ü&=?#'"):
        write(storage, f"signed/{key}", key.encode())
        assert read(storage, f"signed/{key}") == key.encode()


@pytest.mark.parametrize("resize_bytes", [0, 500])
def test_the_files_of_a_batch_wait_for_the_server_together(resize_bytes: int, server: Any) -> None:
    samples, latency = 4, 0.2
    spec = DatasetSpec(data_folder="set", format="npy", num_files_train=samples, record_length_bytes=1000)
    storage = StorageSpec(type="s3", root=BUCKET, options=(("endpoint_url", server.endpoint),), io_depth=samples)
    found = inspect(make_files(spec, storage), storage=storage)
    fetch = FetchSpec(found, found.train, storage=storage, resize_bytes=resize_bytes)
    fetcher, out = Fetcher(fetch), memoryview(bytearray(fetch.slot_bytes(samples)))
    server.behaviour.latency_seconds = latency
    server.most_in_flight = 0
    fetcher.fetch(range(samples), out)
    assert server.most_in_flight == samples
