"""An answer is the same however it arrives: in one piece or cut anywhere, waited for in the read or looked for."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.storage._http_exchange import BrokenResponseError, Connection, Exchange

BODY = bytes(range(256)) * 100
HEAD = b'HTTP/1.1 200 OK\r\nDate: now\r\nETag:  "Of-The-Object" \r\nCONTENT-LENGTH: %d\r\n\r\n' % len(BODY)
IN_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
NO_SIZES = (b"", b"x", b"-2", b"+2", b"0x2", b"2_0", b"\xb2", b"9" * 16, b";2")
cuts = st.lists(st.integers(0, len(HEAD) + len(BODY)), max_size=4)
some = settings(max_examples=30)


@contextlib.contextmanager
def connected(timeout_seconds: float = 0.001) -> Iterator[tuple[Connection, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = Connection(urlsplit(f"http://127.0.0.1:{listening.getsockname()[1]}"), None, timeout_seconds)
        server = listening.accept()[0]
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with server, contextlib.closing(connection):
        yield connection, server


def asked(connection: Connection, target: bytearray | None = None) -> Exchange:
    return Exchange(connection, b"PUT", b"data", None if target is None else memoryview(target))


def bring(server: socket.socket, exchange: Exchange, answer: bytes, places: list[int], *, wait: bool) -> None:
    """Send an answer in pieces, and let the exchange look after each; then until it is whole."""
    ends = sorted(min(place, len(answer)) for place in places)
    for begin, end in zip([0, *ends], [*ends, len(answer)], strict=True):
        server.sendall(answer[begin:end])
        assert not exchange.advance(wait=wait) or end == len(answer)
    until_whole(exchange, wait=wait)


def until_whole(exchange: Exchange, *, wait: bool) -> None:
    while not exchange.advance(wait=wait):
        assert select.select([exchange.connection.descriptor], [], [], 60)[0]


@some
@given(places=cuts, wait=st.booleans())
def test_a_body_lands_where_it_belongs(places: list[int], wait: bool) -> None:
    target = bytearray(len(BODY))
    with connected() as (connection, server):
        exchange = asked(connection, target)
        bring(server, exchange, HEAD + BODY, places, wait=wait)
    assert target == BODY
    assert (exchange.status, exchange.body_bytes, exchange.reusable) == (200, len(BODY), True)
    assert exchange.progress_bytes == len(b"PUT" + b"data" + HEAD + BODY), "by which one that stands still is told"
    assert (exchange.header("etag"), exchange.header("content-length")) == ('"Of-The-Object"', str(len(BODY)))
    assert exchange.header("tag") == exchange.header("x-other") == ""


@some
@given(
    places=cuts,
    wait=st.booleans(),
    sizes=st.lists(st.integers(16, 9000), min_size=1, max_size=5),
    what=st.sampled_from(["bytes", "ends", "nothing"]),
    extra=st.sampled_from([b"", b";a=b", b" "]),
    trailer=st.sampled_from([b"", b"x-checksum: 1\r\n", b"a: b\r\nc: d\r\n"]),
)
def test_a_body_in_chunks_is_put_together(
    places: list[int], wait: bool, sizes: list[int], what: str, extra: bytes, trailer: bytes
) -> None:
    body = {"bytes": BODY, "ends": b"\r\n0\r\n\r\n" * 300, "nothing": b""}[what]
    answer, at = bytearray(IN_CHUNKS), 0
    while at < len(body):
        piece = body[at : at + sizes[at % len(sizes)]]
        answer += b"%X%s\r\n%s\r\n" % (len(piece), extra, piece)
        at += len(piece)
    answer += b"0\r\n" + trailer + b"\r\n"
    with connected() as (connection, server):
        exchange = asked(connection)
        bring(server, exchange, bytes(answer), places, wait=wait)
    assert (exchange.body, exchange.body_bytes, exchange.reusable) == (body, len(body), True)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        *((IN_CHUNKS + size + b"\r\nok", "can't be parsed") for size in NO_SIZES),
        (HEAD + BODY[:9], f"after 9 of {len(BODY)} bytes"),
        (IN_CHUNKS + b"99\r\n" + BODY[:9], "after 13 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + BODY[:9], ""),
    ],
)
def test_only_a_body_without_a_length_ends_with_its_connection(answer: bytes, told: str) -> None:
    with connected(timeout_seconds=60) as (connection, server):
        exchange = asked(connection)
        with pytest.raises(BrokenResponseError, match=told) if told else contextlib.nullcontext():
            for piece in (b"", answer):
                server.sendall(piece)
                assert not exchange.advance(), "it does not wait either"
            server.shutdown(socket.SHUT_WR)
            until_whole(exchange, wait=True)
    assert told or (exchange.body, exchange.reusable) == (BODY[:9], False)


def test_a_server_that_lets_nobody_in_is_given_up_in_time() -> None:
    """It listens and never speaks: what waits is the handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = urlsplit(f"https://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(TimeoutError):
            Connection(address, ssl.create_default_context(), 0.1)
