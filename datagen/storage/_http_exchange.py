"""One HTTP/1.1 request and its response (RFC 9112), the body read straight into the caller's memory.

Why not a library: for objects of 128 KiB, clients take 1.4 (obstore) to 14 (boto3) CPU seconds per GB, and this code
0.7. It builds no response object, and copies only those bytes of a body that arrive together with the header.
"""

from __future__ import annotations

import errno
import re
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence

MAX_HEADER_BYTES = 16 << 10  # maximum size of a response header
HEADER_READ_BYTES = 4 << 10  # maximum read of the header: body bytes that come with it must be copied
SEND_BYTES = 4 << 20  # maximum bytes per send call
ERROR_BYTES = 64 << 10  # maximum bytes read of an error's body: its code and message are at the beginning
BODY_BYTES = 1 << 20  # default limit for the body of a response that is kept in memory instead of a target buffer
MAX_CHUNK_LINE_BYTES = 4 << 10  # maximum length of the line before a chunk, and of all lines after the last one
MAX_INTERIM_RESPONSES = 16  # maximum 1xx responses (Continue, Early Hints) before the final one
_is_hexadecimal = re.compile(rb"[0-9A-Fa-f]{1,15}").fullmatch
_is_number = re.compile("[0-9]{1,18}").fullmatch


class BrokenResponseError(OSError):
    """The response is not HTTP, is incomplete, or contradicts the request."""


class Address:
    """Scheme, host and port of a server."""

    def __init__(self, url_scheme: str, host: str, port: int) -> None:
        self.is_tls = url_scheme == "https"
        self.host = host
        self.port = port
        name = f"[{host}]" if ":" in host else host
        self.authority = name if port == (443 if self.is_tls else 80) else f"{name}:{port}"


class _Socket(socket.socket):
    """Closes itself without a ResourceWarning: a garbage-collected cycle may free it before its `Connection`."""

    def __del__(self) -> None:
        self.close()


class TlsSocket(ssl.SSLSocket):
    """The same for TLS; set as `sslsocket_class` of the SSL context."""

    def __del__(self) -> None:
        self.close()


class Connection:
    """An open connection; it carries one request at a time."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, connect_seconds: float, timeout_seconds: float
    ) -> None:
        """Connect within `connect_seconds`; blocking reads time out after `timeout_seconds`. Raises OSError."""
        self.address = address
        self.scratch = bytearray(MAX_HEADER_BYTES)
        plain = _Socket(fileno=socket.create_connection((address.host, address.port), connect_seconds).detach())
        plain.settimeout(connect_seconds)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket = tls.wrap_socket(plain, server_hostname=address.host) if tls else plain
        except BaseException:
            plain.close()
            raise
        self.descriptor = self.socket.fileno()
        self._poller = select.poll()
        self._poller.register(self.descriptor, select.POLLIN)
        receive: Callable[[memoryview | bytearray, int, int], int] = self._receive_tls if tls else plain.recv_into
        self.receive_into = receive
        """Called with a buffer, the maximum bytes (0: its length) and recv flags. TLS ignores flags and never waits."""
        self.send_flags = 0 if tls else socket.MSG_DONTWAIT
        self.socket.setblocking(tls is None)
        if tls is None:
            microseconds = max(1, round(1e6 * timeout_seconds))
            timeval = struct.pack("ll", *divmod(microseconds, 1_000_000))  # struct timeval
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    def is_quiet(self) -> bool:
        """Return whether the idle connection has nothing to read; data or an EOF mean that it can't be reused."""
        return not self._poller.poll(0)

    def _receive_tls(self, buffer: memoryview | bytearray, _most: int, _flags: int) -> int:
        return self.socket.recv_into(buffer)

    def close(self) -> None:
        self.socket.close()

    def __del__(self) -> None:
        if hasattr(self, "socket"):
            self.socket.close()


class Exchange:
    """A request in flight and its response. Call `advance` whenever the socket is ready, until it returns True."""

    status = 0
    succeeded = False
    body = b""  # the response body, unless it went to the target buffer
    body_bytes = 0  # bytes of the response body so far
    length: int | None = None  # bytes of the response body; None: it is chunked, or ends with the connection
    first_byte_ns = 0
    progress_bytes = 0  # all bytes sent and received so far
    reusable = True  # the connection can carry another request
    _header_bytes = 0
    _text = _lower = ""  # the response header as received, and in lower case
    collected: bytearray | None = None  # the body so far of an error, a listing, ...: kept here instead of in a target
    _chunked: bytearray | None = None  # what was received of a chunked body, with its framing; None for any other body
    _next_chunk = 0  # where the first chunk that has not arrived completely begins there
    _interim = 0
    _is_complete = False

    def __init__(
        self,
        connection: Connection,
        head: bytes,
        body: Sequence[memoryview],
        target: memoryview | None,
        *,
        bodiless: bool = False,
        most_bytes: int = BODY_BYTES,
        header_problem: Callable[[Exchange], str] | None = None,
    ) -> None:
        """Prepare a request of header `head` and `body`; the body of a successful response goes to `target`.

        With `bodiless` the response has no body (HEAD). Without a target, a body of at most `most_bytes` is kept in
        memory. `header_problem` inspects a successful response's header before its body is read: it returns why the
        response is unusable, or ''.
        """
        self.connection = connection
        self.began_ns = time.monotonic_ns()
        self._target = target
        self._bodiless = bodiless
        self._most_bytes = most_bytes  # maximum bytes of `collected`
        self._header_problem = header_problem
        self._out: list[bytes | memoryview] = [head, *body]
        self._header_buffer = connection.scratch

    @property
    def wants_to_send(self) -> bool:
        return bool(self._out)

    def header(self, name: str) -> str:
        """Return a response header's value (the last, if repeated), '' if absent; `name` is in lower case."""
        # Searched for on demand, because most headers are never looked at
        begin = self._lower.rfind(f"\r\n{name}:")
        if begin < 0:
            return ""
        begin += len(name) + 3
        return self._text[begin : self._text.index("\r\n", begin)].strip()

    def advance(self, *, wait: bool = False) -> bool:
        """Send and receive as far as possible without blocking; return whether the response is complete.

        With `wait`, for a request that is alone in flight, a read blocks until the whole body is there (not over TLS):
        one system call, instead of a poll, a read and an EAGAIN for each piece that arrives. It returns False if the
        connection's timeout has passed, or a read was cut short.

        Raises OSError: the connection broke, or the response is not valid HTTP.
        """
        try:
            while self._out:
                self._send()
            while not self.status:
                self._read_header(0 if wait else socket.MSG_DONTWAIT)
                if wait and not self.status:
                    return False
            while not self._is_complete:
                self._read_body(wait)
                if wait and not self._is_complete:
                    return False
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        if self.collected is not None:
            self.body = bytes(self.collected)
        return True

    def _send(self) -> None:
        piece = self._out[0]
        try:
            sent = self.connection.socket.send(piece[:SEND_BYTES], self.connection.send_flags)
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses a large body responds and closes; its response may have arrived already
            self._out.clear()
            self.reusable = False
            return
        self.progress_bytes += sent
        if sent == len(piece):
            del self._out[0]
        else:
            self._out[0] = piece[sent:]

    def _read_header(self, flags: int) -> None:
        free = memoryview(self._header_buffer)[self._header_bytes : self._header_bytes + HEADER_READ_BYTES]
        if not free:
            raise BrokenResponseError(errno.EPROTO, "the response headers do not end")
        count = self.connection.receive_into(free, 0, flags)
        if not count:
            raise BrokenResponseError(errno.ECONNRESET, "the server closed the connection without a response")
        if not self._header_bytes:
            self.first_byte_ns = time.monotonic_ns()
        searched = max(0, self._header_bytes - 3)
        self._header_bytes += count
        self.progress_bytes += count
        while (end := self._header_buffer.find(b"\r\n\r\n", searched, self._header_bytes)) >= 0:
            self._parse_header(self._header_buffer[: end + 2].decode("latin-1"))
            rest = memoryview(self._header_buffer)[end + 4 : self._header_bytes]
            if not 100 <= self.status < 200:
                self._begin_body(rest)
                return
            self._interim += 1
            if self._interim > MAX_INTERIM_RESPONSES:
                raise BrokenResponseError(errno.EPROTO, f"{self._interim} responses of {self.status}, and no final one")
            self._header_buffer[: len(rest)] = bytes(rest)
            self._header_bytes = len(rest)
            self.status = searched = 0  # the header of another response follows

    def _parse_header(self, text: str) -> None:
        status = text[9:12]
        if not text.startswith("HTTP/1.") or not status.isdecimal():
            first = text[: text.index("\r\n")]
            raise BrokenResponseError(errno.EPROTO, f"the response begins with {first[:60]!r}, which is not HTTP")
        self.status = int(status)
        self.succeeded = self.status in (200, 204, 206)
        self._text, self._lower = text, text.lower()
        is_old = text.startswith("HTTP/1.0")
        if is_old or "close" in self._lower:
            closing = self.header("connection").lower()
            if closing == "close" or (is_old and closing != "keep-alive"):
                self.reusable = False

    def _begin_body(self, rest: memoryview) -> None:
        if self._bodiless or self.status in (204, 304):
            self.length = 0
        elif "chunked" in self._lower and "chunked" in self.header("transfer-encoding").lower():
            self._chunked = bytearray()
        else:
            self.length = number_in(self.header("content-length"))
            self.reusable = self.reusable and self.length is not None
        if not self.succeeded:
            self.collected, self._most_bytes = bytearray(), ERROR_BYTES
        elif self._header_problem is not None and (wrong := self._header_problem(self)):
            raise BrokenResponseError(errno.EPROTO, wrong)
        elif self._chunked is not None and self._target is not None:
            raise BrokenResponseError(errno.EPROTO, "an object arrived in chunks, without its length")
        elif self._target is None:
            self.collected = bytearray()
        self._receive_body(rest)

    def _receive_body(self, piece: memoryview) -> None:
        """Store received body bytes, and note whether the body is complete."""
        if self._chunked is not None:
            self._receive_chunks(piece)
            return
        if self.length is not None and len(piece) > self.length - self.body_bytes:
            piece, self.reusable = piece[: self.length - self.body_bytes], False  # more than the stated length
        self._store(piece)
        self._check_length()

    def _receive_chunks(self, piece: memoryview) -> None:
        """Store the body bytes of the chunks that are complete (RFC 9112, section 7.1)."""
        received = self._chunked
        assert received is not None
        received += piece
        if len(received) > 2 * (self._most_bytes + MAX_HEADER_BYTES):
            raise BrokenResponseError(errno.EPROTO, "the response has more chunks than such a response can have")
        while not self._is_complete:
            line_end = received.find(b"\r\n", self._next_chunk, self._next_chunk + MAX_CHUNK_LINE_BYTES)
            if line_end < 0 and len(received) - self._next_chunk < MAX_CHUNK_LINE_BYTES:
                return
            size = received[self._next_chunk : max(0, line_end)].partition(b";")[0].strip()
            if not _is_hexadecimal(size):
                raise _bad_chunks()
            begin, end = line_end + 2, line_end + 2 + int(size, 16)
            if begin == end:  # the last chunk: trailers may follow, and an empty line
                self._is_complete = received.find(b"\r\n\r\n", line_end) >= 0
                if not self._is_complete and len(received) - line_end > MAX_CHUNK_LINE_BYTES:
                    raise _bad_chunks()
                return
            if len(received) < end + 2:
                return
            if received[end : end + 2] != b"\r\n":
                raise _bad_chunks()
            self._store(memoryview(bytes(received[begin:end])))
            self._next_chunk = end + 2

    def _check_length(self) -> None:
        self._is_complete |= self.length is not None and self.body_bytes >= self.length

    def _store(self, part: memoryview) -> None:
        begin, self.body_bytes = self.body_bytes, self.body_bytes + len(part)
        if self.collected is None:
            assert self._target is not None
            if self.body_bytes > len(self._target):
                raise BrokenResponseError(errno.EPROTO, f"the response exceeds the {len(self._target)} bytes wanted")
            self._target[begin : self.body_bytes] = part
            return
        self.collected += part[: self._most_bytes - len(self.collected)]
        if self.body_bytes > self._most_bytes:
            if self.succeeded:
                text = f"the response is longer than {self._most_bytes >> 10} KiB, the most that such a response has"
                raise BrokenResponseError(errno.EMSGSIZE, text)
            self._is_complete, self.reusable = True, False  # the rest of an error's body is not needed

    def _read_body(self, wait: bool) -> None:
        receive_into, target = self.connection.receive_into, self._target
        if self.collected is None and target is not None and self.body_bytes < len(target):
            most = len(target) if self.length is None else min(len(target), self.length)
            flags = socket.MSG_WAITALL if wait else socket.MSG_DONTWAIT
            count = receive_into(target[self.body_bytes : most], 0, flags)
            self.body_bytes += count
            self._check_length()
        else:
            piece = bytearray(4 * MAX_HEADER_BYTES)
            count = receive_into(piece, 0, 0 if wait else socket.MSG_DONTWAIT)
            self._receive_body(memoryview(piece)[:count])
        self.progress_bytes += count
        if count:
            return
        if self.length is None and self._chunked is None:
            self.length, self._is_complete = self.body_bytes, True
            return
        of = "" if self.length is None else f" of {self.length}"
        raise BrokenResponseError(errno.ECONNRESET, f"the response ended after {self.body_bytes}{of} bytes")


def number_in(text: str) -> int | None:
    """Return the decimal number in a header's value; None if it is none, or has more than 18 digits."""
    return int(text) if _is_number(text) else None


def _bad_chunks() -> BrokenResponseError:
    return BrokenResponseError(errno.EPROTO, "the chunks of the response can't be parsed")
