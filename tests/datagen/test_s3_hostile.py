"""A server that means harm, or is broken: whatever it answers, an end in bounds, and right bytes or an error."""

from __future__ import annotations

import contextlib
import itertools
import re
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from datagen.errors import UserError
from datagen.storage import _s3_client, s3
from datagen.storage._http_exchange import BODY_BYTES, BrokenResponseError
from datagen.storage._s3_responses import MAX_TAGS, check_completed, error_in, page_in, range_problem, upload_id_in
from datagen.storage.storage_base import StorageBase, read_whole
from tests.datagen.test_s3 import DATA, _idle, counts_of, read, write
from tests.object_stores import KEYS, fault, own_server, storage_of

pytestmark = pytest.mark.usefixtures("keys")
SOCKET_BYTES = 16 << 20
"""More than what lies in the buffers of a loopback connection."""
ATTEMPTS = 2
LITTLE = {"timeout_seconds": 0.5, "s3_max_attempts": ATTEMPTS}
CHUNKED = b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n"
names = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have requests made again without a pause, whatever the server says."""
    monkeypatch.setattr(_s3_client, "FIRST_BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(_s3_client, "LONGEST_BACKOFF_SECONDS", 0.0)


def listed(storage: StorageBase, folder: str = "data") -> list[str]:
    with storage.entries(folder) as entries:
        return [entry.name for entry in entries]


def page(*keys: str, more: str = "") -> bytes:
    contents = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys)
    return f"<ListBucketResult>{contents}{more}</ListBucketResult>".encode()


@given(st.sets(names, min_size=1, max_size=4))
@example({"it's", "a&b;c", "%41", "+", "\x01\r\n", "..a", "\u2028", "?x=y#z", "a\\b", "~.-_"})
def test_every_name_that_is_listed_can_be_read(given_names: set[str]) -> None:
    with own_server() as server:
        storage = storage_of(server)
        for name in given_names:
            server.objects[f"data/{name}"] = name.encode()
        assert set(listed(storage)) == given_names
        for name in given_names:
            assert bytes(read_whole(storage, f"data/{name}")) == name.encode()


@pytest.mark.parametrize("key", ["other/a", "data", "data/a/b", "../data/a"])
def test_a_listing_of_what_does_not_lie_there_is_refused(key: str) -> None:
    answer, words = (
        fault("body", status=200, body=page("data/a", key)),
        f"the response lists '{key}', which is not directly below 'data/'",
    )
    with own_server(fault=lambda request: answer) as server, pytest.raises(UserError, match=re.escape(words)):
        listed(storage_of(server))


def test_names_that_lead_elsewhere_are_left_out(server: Any) -> None:
    server.objects |= {"data/../up": b"", "data/./here": b"", "data//none": b"", "data/": b"", "data/a": b""}
    assert listed(storage_of(server)) == ["a"]


@pytest.mark.parametrize(
    ("body", "pages"),
    [
        (lambda n: page(f"data/{n}", more="<NextContinuationToken>same</NextContinuationToken>"), 2),
        (lambda n: page(f"data/{n}", more=f"<NextContinuationToken>{n % 7}</NextContinuationToken>"), 8),
        (lambda n: page(more=f"<NextContinuationToken>{n}</NextContinuationToken>"), 22),
    ],
    ids=["one token", "a round of tokens", "ever new tokens"],
)
def test_a_listing_without_end_is_named(
    body: Callable[[int], bytes], pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "MAX_PAGES", 20)
    with own_server(fault=lambda request: fault("body", status=200, body=body(request.number))) as server:
        with pytest.raises(UserError, match=r"the listing of 'data/' does not end .* continuation tokens advance"):
            listed(storage_of(server))
        assert len(server.requests) == pages


BOMB = '<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx"><!ENTITY y "&x;&x;&x;">]><ListBucketResult>&y;</ListBucketResult>'
HOSTILE_XML = {
    "nothing": b"",
    "text": b"welcome",
    "another document": b"<html></html>",
    "cut": page("a")[:-9],
    "two documents": page() + page(),
    "entities": BOMB.encode(),
    "entities in UTF-16": BOMB.encode("utf-16"),
    "entities in UTF-16 that is not said to be that": BOMB.encode("utf-16-be"),
    "outside": b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><ListBucketResult/>',
    "unknown entity": page("&nbsp;"),
    "no character": page("&#0;"),
    "no UTF-8": page("a").replace(b"a<", b"\xff<"),
    "another encoding": b'<?xml version="1.0" encoding="utf-7"?>' + page("+AGE-").replace(b"AGE", b"\xff"),
    "nested": page(more="<a>" * (BODY_BYTES // 7 - 10) + "</a>" * (BODY_BYTES // 7 - 10)),
    "elements": page(more="<a/>" * (BODY_BYTES // 4 - 20)),
    "a long token": page(more=f"<NextContinuationToken>{'x' * 9999}</NextContinuationToken>"),
}


@pytest.mark.parametrize("body", HOSTILE_XML.values(), ids=HOSTILE_XML.keys())
def test_xml_that_no_server_of_objects_sends_is_refused(body: bytes) -> None:
    list_page = partial(page_in, "")
    for reading in (list_page, upload_id_in, check_completed):
        if reading is list_page or b"ListBucketResult" not in body:
            words = "has a DOCTYPE or a NUL" if b"\0" in body else "(is|has|lists|names) "
            with pytest.raises(BrokenResponseError, match=f"the response {words}"):
                reading(body)
    error_in(body)


DEEP = (MAX_TAGS - 4) // 2
LONG, MANY = "n" * 65536, range(20_000)
DEAR_XML = {
    "nested": page(more="<a>" * DEEP + "</a>" * DEEP),
    "elements": page(more="<Contents/>" * (MAX_TAGS - 4)),
    "names of elements": page(more=f"<x xmlns='{LONG}'>" + "".join(f"<a{i}/>" for i in MANY) + "</x>"),
    "names of attributes": page(more=f"<x xmlns:n='{LONG}' " + " ".join(f"n:a{i}=''" for i in MANY) + "/>"),
}


@pytest.mark.parametrize("body", DEAR_XML.values(), ids=DEAR_XML.keys())
def test_a_page_takes_no_more_memory_than_some_times_the_most_bytes_it_may_have(body: bytes) -> None:
    tracemalloc.start()
    try:
        page_in("", body)
        assert tracemalloc.get_traced_memory()[1] < 6 * BODY_BYTES
    finally:
        tracemalloc.stop()


def test_what_an_error_says_is_read_as_far_as_it_goes() -> None:
    text = b"<?xml version='1.0'?>\n<Error><Code>SlowDown</Code><Message>it&#39;s &lt;busy&gt;</Message><Key>"
    assert error_in(text) == ("SlowDown", "it's <busy>")
    assert error_in(b"<html><Code>SlowDown</Code></html>") == ("", "")


def endless(head: bytes, piece: bytes) -> Iterator[bytes]:
    return itertools.chain([head], itertools.repeat(piece))


CHUNK = b"10000\r\n" + bytes(65536) + b"\r\n"
PLAIN = bytes(65536)
ENDLESS: dict[str, Callable[[], Iterable[bytes]]] = {
    "an error in chunks": lambda: endless(CHUNKED % 500, CHUNK),
    "a success in chunks": lambda: endless(CHUNKED % 200, CHUNK),
    "a success without length": lambda: endless(b"HTTP/1.1 200 X\r\n\r\n", PLAIN),
    "a head": lambda: endless(b"HTTP/1.1 200 X\r\n", b"a: b\r\n" * 9999),
    "heads": lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 999),
    "the size of a chunk": lambda: endless(CHUNKED % 200, b"0" * 65536),
    "chunks of a byte": lambda: endless(CHUNKED % 200, b"1\r\nx\r\n" * 9999),
    "a trailer": lambda: endless(CHUNKED % 200 + b"0\r\n", b"a: b\r\n" * 9999),
}


def read_some(storage: StorageBase, path: str) -> bytes:
    """Read what an object is said to have, as far as there is memory for it."""
    buffer = memoryview(bytearray(2 * len(DATA)))
    return bytes(buffer[: storage.read_files([(path, buffer)])[0][1]])


CALLS: dict[str, Callable[[StorageBase], object]] = {
    "list": listed,
    "head": lambda storage: storage.size_bytes("data/a"),
    "get": lambda storage: read_some(storage, "data/a"),
    "put": lambda storage: write(storage, "data/a", b"x"),
    "delete": lambda storage: storage.remove("data/a"),
    "upload": lambda storage: write(storage, "data/b"),
    "folder": lambda storage: storage.is_folder("data"),
}


@pytest.mark.parametrize("answer", ENDLESS.values(), ids=ENDLESS.keys())
@pytest.mark.parametrize("call", ["list", "get"])
def test_an_answer_without_end_is_left_when_it_is_longer_than_it_may_be(
    server: Any, answer: Callable[[], Iterable[bytes]], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 100_000)
    server.objects["data/a"] = DATA
    server.behaviour.fault = lambda request: fault("raw", raw=answer())
    storage = storage_of(server, options=LITTLE)
    with pytest.raises((UserError, OSError)):
        CALLS[call](storage)
    assert server.sent_bytes < 3 * ATTEMPTS * (BODY_BYTES + SOCKET_BYTES)
    assert counts_of(storage)["in_flight"] == counts_of(storage)["connections_open"] - len(_idle(storage)) == 0


heads = st.lists(
    st.tuples(
        st.sampled_from(["Content-Length", "Transfer-Encoding", "Content-Range", "Retry-After", "Date", "ETag"]),
        st.sampled_from(["0", "5", "-1", "+5", "1e3", "\u00b2", "9" * 5000, "chunked", "bytes 0-4/5", "bytes 5-0/*", "",
                         "bytes */5", "Thu, 01 Jan 0001 00:00:00 -0000", "Fri, 31 Dec 9999 23:59:59 -2359", "x" * 99]),
    ),
    max_size=4,
)  # fmt: skip


@pytest.mark.usefixtures("small_parts")
@given(
    status=st.sampled_from([100, 199, 200, 204, 206, 301, 304, 400, 403, 404, 412, 416, 429, 500, 503, 999]),
    headers=heads,
    body=st.sampled_from(
        [b"", b"12345", b"5\r\n12345\r\n0\r\n\r\n", b"-5\r\n", b"0x5\r\n12345\r\n0\r\n\r\n", page("data/a")]
    )
    | st.sampled_from(["RequestTimeTooSkewed", "ExpiredToken", "NoSuchBucket", "NoSuchUpload", "Odd"]).map(
        lambda code: f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()
    ),
    call=st.sampled_from(sorted(CALLS)),
)
def test_any_answer_to_any_request_is_taken_or_named(
    status: int, headers: list[tuple[str, str]], body: bytes, call: str
) -> None:
    said = "".join(f"{name}: {value}\r\n" for name, value in headers)
    raw = f"HTTP/1.1 {status} X\r\n{said}\r\n".encode("latin-1") + body
    with own_server() as server:
        server.objects["data/a"] = DATA
        server.behaviour.fault = lambda request: fault("raw", raw=[raw]) if request.number % 2 else None
        storage = storage_of(server, options={"s3_max_attempts": 2})
        with contextlib.suppress(UserError, FileNotFoundError):
            result = CALLS[call](storage)
            if call == "get":
                assert result in (DATA, b"12345", b"")  # as said by an answer that is in order
        assert counts_of(storage)["in_flight"] == 0


@given(
    begin=st.integers(0, 1002),
    last=st.integers(0, 1002),
    total=st.one_of(st.none(), st.integers(990, 1010)),
    range_bytes=st.sampled_from([0, 100, 500]),
)
@example(begin=100, last=199, total=1000, range_bytes=100)
@example(begin=0, last=99, total=None, range_bytes=100)
def test_bytes_of_another_range_are_never_taken_for_those_requested(
    begin: int, last: int, total: int | None, range_bytes: int
) -> None:
    data = DATA[:1000]
    stated = f"bytes {begin}-{last}/{'*' if total is None else total}"
    wrong = fault("body", status=206, body=data[begin : last + 1], headers={"Content-Range": stated})
    with own_server() as server:
        server.objects["a"] = data
        server.behaviour.fault = lambda request: wrong if request.method == "GET" and request.number % 2 else None
        storage = storage_of(server, range_bytes=range_bytes, options={"s3_max_attempts": 99})
        for whole in (True, False):
            with contextlib.suppress(UserError):  # of a size that no range of the object fits
                got = read(storage, "a", whole=whole)
                assert got == data or (whole and total != len(data) and data.startswith(got))


@pytest.mark.parametrize(
    ("requested", "size", "status", "length", "stated", "told"),
    [
        ((0, 100), 1000, 206, 100, "bytes 0-99/1000", ""),
        ((900, 1100), None, 206, 100, "bytes 900-999/1000", ""),
        ((0, 100), None, 206, 100, "bytes 0-99/*", ""),
        ((0, 100), 100, 200, 100, "", ""),
        ((0, None), 100, 204, 0, "", "the response has no object, or does not state its length"),
        ((0, None), 99, 200, 100, "", "'' with 100 bytes arrived where all of the object of 99 was requested"),
        ((1, 9), 99, 206, 8, "", "'' with 8 bytes arrived where bytes 1-8 of 99 was requested"),
        ((1, 9), None, 206, 8, "x" * 99, f"'{60 * 'x'}' with 8 bytes arrived where bytes 1-8 was requested"),
        ((1, 9), 99, 200, 99, "", "all of the object arrived where bytes 1-8 was requested: the server does not supp"),
    ],
)
def test_what_arrived_is_held_against_what_was_requested(
    requested: tuple[int, int | None], size: int | None, status: int, length: int | None, stated: str, told: str
) -> None:
    response: Any = SimpleNamespace(status=status, length=length, header=lambda name: stated)
    problem = range_problem(*requested, size, response)
    assert problem[: len(told)] == told
    assert bool(problem) == bool(told)


def test_pieces_of_objects_come_by_as_many_requests_at_once_as_asked(server: Any) -> None:
    storage = storage_of(server, io_depth=3, range_bytes=100)
    for name in "ab":
        server.objects[name] = DATA[ord(name) :][:1000]
    readers = [storage.open(name) for name in "ab"]
    pieces = [(0, 0, 350), (1, 700, 500), (1, 10, 20), (0, 1000, 5)]
    fills = [(readers[one], memoryview(bytearray(size)), offset) for one, offset, size in pieces]
    server.behaviour.latency_seconds, server.most_in_flight = 0.1, 0
    got = storage.read_all(fills)
    assert got == [350, 300, 20, 0], "no more than there is"
    for (one, offset, _), (_, buffer, _), size in zip(pieces, fills, got, strict=True):
        assert bytes(buffer[:size]) == server.objects["ab"[one]][offset : offset + size]
    assert server.most_in_flight == 3


@pytest.mark.parametrize("size", ["", "-1", "9" * 5000])
def test_an_object_without_a_size_is_not_an_empty_one(size: str) -> None:
    raw = f"HTTP/1.1 200 X\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n".encode("latin-1")
    with own_server(fault=lambda request: fault("raw", raw=[raw])) as server:
        for call in (lambda s: s.size_bytes("a"), lambda s: s.open("a"), lambda s: list(s.sizes(["a"]))):
            with pytest.raises(UserError, match=r"HEAD s3://bucket/a .* the response has no Content-Length"):
                call(storage_of(server, options=LITTLE))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 100_000)


def completing(request: Any) -> bool:
    return request.method == "POST" and "uploadId" in request.query


@pytest.mark.usefixtures("small_parts")
def test_a_completed_upload_whose_answer_got_lost_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [fault("drop")]
    with own_server(fault=lambda request: lost.pop() if completing(request) and lost else None) as server:
        storage = storage_of(server)
        write(storage, "data/a")
        assert server.objects["data/a"] == DATA
        assert not lost
        assert server.uploads == {}
        assert read(storage, "data/a") == DATA


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("there", [None, DATA, DATA[:5]])
def test_an_upload_that_somebody_aborted_is_not_taken_for_complete(server: Any, there: bytes | None) -> None:
    if there is not None:
        server.objects["data/a"] = there  # of the same size: an earlier checkpoint of the same model

    def abort(request: Any) -> None:
        if completing(request):
            server.uploads.clear()

    server.behaviour.fault = abort
    writer = storage_of(server).create("data/a")
    writer.write(DATA)
    with pytest.raises(UserError, match=r"NoSuchUpload.*: another program or a lifecycle rule .* run the command"):
        writer.commit()
    writer.discard()
    assert server.objects.get("data/a") == there


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("body", [b"", b"<Complete", b"<Error><Code>InternalError</Code></Error>"])
def test_a_completion_that_says_something_else_is_no_success(body: bytes) -> None:
    def says(request: Any) -> Any:
        return fault("body", status=200, body=body) if completing(request) else None

    with own_server(fault=says) as server:
        writer = storage_of(server, options=LITTLE).create("data/a")
        writer.write(DATA)
        reason = "200 InternalError" if b"Error" in body else "the response is "
        with pytest.raises(UserError, match=rf"POST s3://bucket/data/a .* failed 2 times, .*: {reason}"):
            writer.commit()
        writer.discard()
        assert (server.objects, server.uploads) == ({}, {})


@pytest.mark.parametrize(
    "lines",
    [
        "role_arn = arn:aws:iam::1:role/r\nweb_identity_token_file = /no/such/token\n",
        "credential_process = /no/such/program\n",
    ],
)
def test_a_profile_that_brings_no_credentials_is_named(
    server: Any, lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("botocore")
    (tmp_path / "config").write_text(f"[profile p]\n{lines}")
    for name in KEYS:
        monkeypatch.delenv(name)
    for name, value in (
        ("AWS_CONFIG_FILE", str(tmp_path / "config")),
        ("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none")),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("HOME", str(tmp_path)),
        ("AWS_PROFILE", "p"),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"no credentials of profile 'p' for S3 \(.*Wanted: AWS_ACCESS_KEY_ID"):
        storage_of(server).size_bytes("a")
    assert server.requests == []
