"""One HTTP/1.1 request and its response (RFC 9112), whose body is read straight into the caller's memory.

dlemu uses no HTTP library, to save CPU time: for objects of 128 KiB, clients take 1.4 (obstore) to 14 (boto3) CPU
seconds per GB, this code takes 0.7. It copies only those bytes of a body that arrive together with the header.
"""

from __future__ import annotations

import errno
import re
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar
from urllib.parse import SplitResult

from datagen.storage.storage_base import Bytes

CONNECT_SECONDS = 10.0  # Linux repeats a lost SYN after 1, 3 and 7 s
MAX_HEADER_BYTES = 16 << 10  # maximum size of a response's header and the headers of interim responses before it
HEADER_READ_BYTES = 4 << 10  # maximum read of the header; small, because bytes of the body that come with it are copied
SEND_BYTES = 4 << 20  # maximum bytes per send call
MIN_PROGRESS_BYTES = 64 << 10  # a request that moves less within the timeout is aborted: the server hangs, or trickles
BODY_READ_BYTES = 64 << 10  # maximum read of a body that is kept in memory instead of a target buffer
# Maximum size of a body that is kept in memory: 1000 keys of 1024 bytes, all escaped ("&#38;"), and their metadata
BODY_BYTES = 8 << 20
MAX_CHUNK_LINE_BYTES = 4 << 10  # maximum length of the line before a chunk, and of all lines after the last one
_chunk_line = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n").match  # size of a chunk, and extensions
BAD_CHUNKS = "the chunks of the response can't be parsed"
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
T = TypeVar("T")
Steps = Generator[None, None, T]  # yields where the socket would block
_is_number = re.compile("[0-9]{1,18}").fullmatch


class BrokenResponseError(OSError):
    """The response is not HTTP, is incomplete, or contradicts the request."""

    def __init__(self, problem: str, number: int = errno.EPROTO) -> None:
        super().__init__(number, problem)


class _Socket(socket.socket):
    """A socket that closes itself without a ResourceWarning."""

    def __del__(self) -> None:
        self.close()


class TlsSocket(ssl.SSLSocket, _Socket):
    """A `_Socket` for TLS (`sslsocket_class` of the SSL context). It never blocks, and ignores flags."""

    def send(self, data: Any, flags: int = 0) -> int:
        return super().send(data)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        return super().recv_into(buffer)


class Connection:
    """An open connection; it carries one request at a time."""

    def __init__(self, address: SplitResult, tls: ssl.SSLContext | None, timeout_seconds: float) -> None:
        """Connect, with TLS if the scheme is https; blocking reads time out after `timeout_seconds`. Raises OSError."""
        self.address = address
        self.timeout_ns = round(1e9 * timeout_seconds)
        self.scratch = bytearray(MAX_HEADER_BYTES)
        is_tls = address.scheme == "https"
        host_and_port = address.hostname, address.port or (443 if is_tls else 80)
        connect_seconds = min(CONNECT_SECONDS, timeout_seconds)
        plain = _Socket(fileno=socket.create_connection(host_and_port, connect_seconds).detach())
        plain.settimeout(connect_seconds)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        microseconds = max(1, round(1e6 * timeout_seconds))
        timeval = struct.pack("ll", *divmod(microseconds, 1_000_000))  # struct timeval
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self.socket = tls.wrap_socket(plain, server_hostname=address.hostname) if tls and is_tls else plain
        self.socket.setblocking(not is_tls)
        self.descriptor = self.socket.fileno()
        self._poller = select.poll()
        self._poller.register(self.descriptor, select.POLLIN)

    def is_quiet(self) -> bool:
        """Return whether the idle connection has nothing to read; if it has data or an EOF, it can't be reused."""
        return not self._poller.poll(0)

    def close(self) -> None:
        self.socket.close()


class Exchange:
    """A request in flight and its response. Call `advance` whenever the socket is ready, until it returns True."""

    # Initial values, in the class because this is faster than to set them for each request
    status = 0  # HTTP status; 0 until the response header has arrived
    succeeded = False  # the status is 200, 204 or 206
    body = b""  # the response body, unless it went to the target
    body_bytes = 0  # bytes of the response body so far
    length: int | None = None  # bytes of the whole body; None: not known before its end
    first_byte_ns = 0  # when the first byte of the response arrived (monotonic)
    progress_bytes = 0  # bytes sent and received since progress was last checked
    reusable = True  # the connection can carry another request
    is_sending = True  # until the whole request has been sent
    _keeps_body = False  # a body without a target (of an error, a listing, ...) is arriving, and is kept in memory
    _must_finish = False  # such a body was arriving when `deadline_ns` was set; as it is short, it must end by then
    _text = _lower = ""  # the response header as received, and in lower case
    _is_chunked = False
    _blocking_reads = 0  # how many of the next reads block until data arrives

    def __init__(
        self,
        connection: Connection,
        head: bytes,
        body: Bytes,
        target: memoryview | None,
        *,
        bodiless: bool = False,
        header_problem: Callable[[Exchange], str] | None = None,
    ) -> None:
        """Prepare a request of header `head` and `body`; the body of a successful response goes to `target`.

        With `bodiless`, the response has no body (HEAD). Without a target, a body of at most `BODY_BYTES` is kept in
        memory. `header_problem` returns why a successful response is unusable by its header, or ''.
        """
        self.connection = connection
        self.began_ns = time.monotonic_ns()
        self.deadline_ns = self.began_ns + connection.timeout_ns
        self._target = target
        self._bodiless = bodiless
        self._header_problem = header_problem
        self._receive_into = connection.socket.recv_into
        self._steps = self._run(head, body)

    def header(self, name: str) -> str:
        """Return a response header's value (the last, if repeated), '' if absent; `name` is in lower case."""
        begin = self._lower.rfind(f"\r\n{name}:")  # headers are not parsed in advance, as most are never used
        if begin < 0:
            return ""
        begin += len(name) + 3
        return self._text[begin : self._text.index("\r\n", begin)].strip()

    def advance(self, *, wait: bool = False) -> bool:
        """Send and receive as far as possible without blocking; return whether the response is complete.

        With `wait`, for a request that is alone in flight, up to two reads block (not over TLS), which saves polls and
        short reads. If the response is incomplete after them, or the connection's timeout has passed, poll before the
        next call. Raises OSError: the connection broke, or the response is not valid HTTP.
        """
        self._blocking_reads = 2 if wait else 0  # one for the header and one for the body, unless the header takes both
        for _ in self._steps:  # yields where the socket would block
            return False
        return True

    def check_progress(self) -> None:
        """Call from `deadline_ns` on: raise TimeoutError if the server has stalled, else set the next deadline."""
        if self.progress_bytes < MIN_PROGRESS_BYTES or self._must_finish:
            if self._must_finish:
                amount = "not all of a short response"
            else:
                amount = f"no more than {MIN_PROGRESS_BYTES >> 10} KiB" if self.status else "no response"
            raise TimeoutError(errno.ETIMEDOUT, f"{amount} arrived within {self.connection.timeout_ns / 1e9:g} s")
        self.progress_bytes = 0
        self._must_finish = self._keeps_body
        self.deadline_ns = time.monotonic_ns() + self.connection.timeout_ns

    def _run(self, head: bytes, body: Bytes) -> Steps[None]:
        """Send the request, read the response's header, and read its body into the target or `self.body`."""
        yield from self._send(memoryview(head))
        if body:
            yield from self._send(memoryview(body))
        self.is_sending = False
        if not self._blocking_reads:
            yield  # the response has not arrived yet
        body_start = yield from self._read_header()
        self._is_chunked = "chunked" in self._lower and "chunked" in self.header("transfer-encoding").lower()
        if self._bodiless or self.status in (204, 304):
            self.length = 0
        elif not self._is_chunked:
            self.length = number_in(self.header("content-length"))
        if self.succeeded and self._header_problem is not None and (problem := self._header_problem(self)):
            raise BrokenResponseError(problem)
        if self.succeeded and self._target is not None:
            yield from self._fill(self._target, body_start)
            return
        self._keeps_body = True
        received = bytearray(body_start)
        if self._is_chunked and self.length is None:
            self.body = yield from self._read_chunks(received)
        else:
            while self.length is None or len(received) < self.length:
                count = yield from self._read_more(received)
                if not count:  # a body without a length ends with the connection
                    break
            self.reusable = self.reusable and len(received) == self.length
            self.body = bytes(received[: self.length])
        self.body_bytes = len(self.body)

    def _send(self, data: memoryview) -> Steps[None]:
        while data and self.reusable:
            try:
                sent = self.connection.socket.send(data[:SEND_BYTES], socket.MSG_DONTWAIT)
            except WOULD_BLOCK:
                yield
                continue
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a large body responds and closes: its response may have arrived already
                self.reusable = False
                return
            self.progress_bytes += sent
            data = data[sent:]

    def _receive(self, buffer: memoryview | bytearray, flags: int = 0, *, may_end: bool = False) -> Steps[int]:
        """Receive into a buffer, with `flags` if the read blocks; return the bytes, 0 at the end if it `may_end`."""
        while True:
            if self._blocking_reads:
                self._blocking_reads -= 1
                call_flags = flags
            else:
                call_flags = socket.MSG_DONTWAIT
            try:
                count = self._receive_into(buffer, 0, call_flags)
            except WOULD_BLOCK:
                yield
                continue
            if not count and not may_end:
                of_length = "" if self.length is None else f" of {self.length}"
                incomplete = f"the response ended after {self.body_bytes}{of_length} bytes"
                closed = "the server closed the connection without a response"
                raise BrokenResponseError(incomplete if self.status else closed, errno.ECONNRESET)
            self.progress_bytes += count
            return count

    def _read_header(self) -> Steps[memoryview]:
        """Read the response's header; return the bytes of the body that arrived with it."""
        buffer = self.connection.scratch
        begin = received = 0  # offsets of this header, and of the end of the data that has arrived
        while not self.status or 100 <= self.status < 200:  # interim (Continue, Early Hints): another header follows
            while (end := buffer.find(b"\r\n\r\n", begin, received)) < 0:
                free = memoryview(buffer)[received : received + HEADER_READ_BYTES]
                if not free:
                    raise BrokenResponseError("the response headers do not end")
                received += yield from self._receive(free)
                self.first_byte_ns = self.first_byte_ns or time.monotonic_ns()
            self._parse_header(buffer[begin : end + 2].decode("latin-1"))
            begin = end + 4
        return memoryview(buffer)[begin:received]

    def _parse_header(self, text: str) -> None:
        status = text[9:12]  # of "HTTP/1.1 200 OK"
        if not text.startswith("HTTP/1.") or not status.isdecimal():
            status_line = text[: text.index("\r\n")]
            raise BrokenResponseError(f"the response begins with {status_line[:60]!r}, which is not HTTP")
        self.status = int(status)
        self.succeeded = self.status in (200, 204, 206)
        self._text, self._lower = text, text.lower()
        if text.startswith("HTTP/1.0") or self.header("connection").lower() == "close":
            self.reusable = False

    def _fill(self, target: memoryview, body_start: memoryview) -> Steps[None]:
        """Read the body, of which `body_start` has arrived, into the target."""
        if self.length is None or self.length > len(target):
            raise BrokenResponseError(f"the response has {self.length} bytes, wanted at most {len(target)}")
        target = target[: self.length]
        self.body_bytes = min(len(body_start), self.length)
        target[: self.body_bytes] = body_start[: self.body_bytes]
        self.reusable = self.reusable and len(body_start) == self.body_bytes  # not if more than the length has arrived
        while self.body_bytes < self.length:
            self.body_bytes += yield from self._receive(target[self.body_bytes :], socket.MSG_WAITALL)

    def _read_more(self, received: bytearray) -> Steps[int]:
        """Append to a body that is kept in memory; return the bytes, 0 when a body without length ends."""
        if len(received) > BODY_BYTES:
            problem = f"the response is longer than {BODY_BYTES >> 10} KiB, the most that such a response has"
            raise BrokenResponseError(problem, errno.EMSGSIZE)
        self.body_bytes = len(received)
        buffer = bytearray(BODY_READ_BYTES)
        count = yield from self._receive(buffer, may_end=self.length is None and not self._is_chunked)
        received += buffer[:count]
        return count

    def _read_chunks(self, received: bytearray) -> Steps[bytes]:
        """Return the body that is sent in chunks (RFC 9112, section 7.1), of which `received` has arrived."""
        body = bytearray()
        position = 0
        while True:
            while (line := _chunk_line(received, position)) is None:
                if len(received) - position > MAX_CHUNK_LINE_BYTES or b"\n" in received[position:]:
                    raise BrokenResponseError(BAD_CHUNKS)
                yield from self._read_more(received)
            position = line.end()
            chunk_bytes = int(line[1], 16)
            if not chunk_bytes:  # the last chunk is empty
                break
            chunk_end = position + chunk_bytes
            while len(received) < chunk_end + 2:
                yield from self._read_more(received)
            if received[chunk_end : chunk_end + 2] != b"\r\n":
                raise BrokenResponseError(BAD_CHUNKS)
            body += received[position:chunk_end]
            position = chunk_end + 2
        while received.find(b"\r\n\r\n", position - 2) < 0:  # after the last chunk: trailers, if any, and an empty line
            if len(received) - position > MAX_CHUNK_LINE_BYTES:
                raise BrokenResponseError(BAD_CHUNKS)
            yield from self._read_more(received)
        return bytes(body)


def number_in(text: str) -> int | None:
    """Return a header's value as a decimal number; None if it is none, or has more than 18 digits."""
    return int(text) if _is_number(text) else None
