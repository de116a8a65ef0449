"""One request and its answer over HTTP/1.1 (RFC 9112), its body read where it belongs.

Own code because of what it costs: at objects of 128 KiB a library's client takes 1.4 (obstore) to 14 (boto3) CPU
seconds a GB, this 0.7, for it makes no object of the answer and copies no byte of it but those that came with its head.
"""

from __future__ import annotations

import errno
import re
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence

HEAD_BYTES = 16 << 10
"""Most bytes of an answer's head."""
FIRST_BYTES = 4 << 10
"""Most bytes of a read of the head: what comes of the body with it is copied to where it belongs."""
PIECE_BYTES = 4 << 20
"""Sent at a time."""
ERROR_BYTES = 64 << 10
"""Most bytes that are read of an error: what it is stands at its beginning."""
BODY_BYTES = 1 << 20
"""Most bytes of another answer that is collected, where the request does not say how many."""
CHUNK_LINE_BYTES = 4 << 10
"""Most bytes of a line between chunks."""
INTERIM_ANSWERS = 16
"""Most answers (Continue, Early Hints) before the one that counts."""
TIMED_READS = 16
"""One of so many reads over TLS is timed: each brings 16 KiB at most, and the clock would cost a tenth of it."""


class BrokenAnswerError(OSError):
    """The answer is not HTTP, or ended before its end."""


class Address:
    """Where a server is."""

    def __init__(self, url_scheme: str, host: str, port: int) -> None:
        self.is_tls = url_scheme == "https"
        self.host = host
        self.port = port
        name = f"[{host}]" if ":" in host else host
        self.authority = name if port == (443 if self.is_tls else 80) else f"{name}:{port}"


class _Socket(socket.socket):
    """Closed when nobody holds it, without a warning: where a cycle goes, it may go before its `Connection`."""

    def __del__(self) -> None:
        self.close()


class TlsSocket(ssl.SSLSocket):
    """The same over TLS: the `sslsocket_class` of a context."""

    def __del__(self) -> None:
        self.close()


class Connection:
    """An open connection, which serves one request after the other."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, connect_seconds: float, patience_seconds: float
    ) -> None:
        """Connect within `connect_seconds`; reads that wait do so for `patience_seconds`. Raises OSError."""
        self.address = address
        self.scratch = bytearray(HEAD_BYTES)
        self.tls_cpu_ns = 0
        """CPU time of this thread that TLS took so far: its handshake, and reading, as every 16th read shows it."""
        self._reads = 0
        plain = _Socket(fileno=socket.create_connection((address.host, address.port), connect_seconds).detach())
        plain.settimeout(connect_seconds)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            began_ns = time.thread_time_ns()
            self.socket = tls.wrap_socket(plain, server_hostname=address.host) if tls else plain
            if tls:
                self.tls_cpu_ns = time.thread_time_ns() - began_ns
        except BaseException:
            plain.close()
            raise
        self.number = self.socket.fileno()
        self._poller = select.poll()
        self._poller.register(self.number, select.POLLIN)
        receive: Callable[[memoryview | bytearray, int, int], int] = self._receive_tls if tls else plain.recv_into
        self.receive_into = receive
        """Takes a buffer, the most bytes (0: as many as it holds) and flags; TLS never waits, whatever these say."""
        self.send_flags = 0 if tls else socket.MSG_DONTWAIT
        self.socket.setblocking(tls is None)
        if tls is None:
            microseconds = max(1, round(1e6 * patience_seconds))
            patience = struct.pack("ll", *divmod(microseconds, 1_000_000))  # struct timeval
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)

    def is_quiet(self) -> bool:
        """Return whether nothing came unrequested: the end of a connection that the server closed."""
        return not self._poller.poll(0)

    def wait_for(self, events: int, seconds: float) -> bool:
        """Wait until there is something to read or room to send; return whether there is."""
        poller = select.poll()
        poller.register(self.number, events)
        return bool(poller.poll(1000 * seconds))

    def _receive_tls(self, buffer: memoryview | bytearray, _most: int, _flags: int) -> int:
        self._reads += 1
        if self._reads % TIMED_READS:
            return self.socket.recv_into(buffer)
        began_ns = time.thread_time_ns()
        try:
            return self.socket.recv_into(buffer)
        finally:
            self.tls_cpu_ns += TIMED_READS * (time.thread_time_ns() - began_ns)

    def close(self) -> None:
        self.socket.close()

    def __del__(self) -> None:
        if hasattr(self, "socket"):
            self.socket.close()


class Exchange:
    """A request under way. `advance` is called whenever its socket is ready, until it returns True."""

    status = 0
    succeeded = False
    body = b""
    """The answer's body where `target` does not have it."""
    got = 0
    """Bytes of the answer's body so far."""
    length: int | None = None
    """Bytes of the answer's body; None where its end shows it."""
    first_byte_ns = 0
    progress_bytes = 0
    """All bytes that went over the connection, either way."""
    reusable = True
    _head_bytes = 0
    _text = _lower = ""
    """The answer's head; and in small letters."""
    _early: memoryview | None = None
    """What became of the body together with the head; it lies where the head was read."""
    _collected: bytearray | None = None
    _most_bytes = 0
    """Of what is collected."""
    _chunks: Chunks | None = None
    _raw_bytes = 0
    """Of a body in chunks, with what stands between them."""
    _interim = 0
    _is_over = False

    def __init__(
        self,
        connection: Connection,
        head: bytes,
        body: Sequence[memoryview],
        target: memoryview | None,
        *,
        bodiless: bool = False,
        most_bytes: int = BODY_BYTES,
        what_is_wrong: Callable[[Exchange], str] | None = None,
    ) -> None:
        """Begin with a request's head and body; an answer's body of success goes to `target`, which must hold it.

        `bodiless` says that the answer will have none (HEAD). Without a target `most_bytes` are collected of it.
        `what_is_wrong` looks at the head of a success before any of its body is read, and says why it is not the one
        that is wanted.
        """
        self.connection = connection
        self.began_ns = time.monotonic_ns()
        self._target = target
        self._bodiless = bodiless
        self._limit = most_bytes
        self._what_is_wrong = what_is_wrong
        self._out: list[bytes | memoryview] = [head, *body]
        self._head = connection.scratch

    @property
    def wants_to_send(self) -> bool:
        return bool(self._out)

    @property
    def collects(self) -> bool:
        """Return whether the answer's body is one that is small, and not the bytes of an object."""
        return self._collected is not None

    def header(self, name: str) -> str:
        """Return what a header of the answer says, of several the last; empty where there is none.

        `name` is in small letters. Most headers are never requested: none is taken out of the head before it is.
        """
        begin = self._lower.rfind(f"\r\n{name}:")
        if begin < 0:
            return ""
        begin += len(name) + 3
        return self._text[begin : self._text.index("\r\n", begin)].strip()

    def advance(self, *, to_head: bool = False, wait: bool = False) -> bool:
        """Send and read as far as the socket lets it; return whether the answer is whole, or its head with `to_head`.

        With `wait`, for requests that are alone, the kernel waits in the read itself, without TLS, and for the whole
        body: one call where each piece that arrives would take a poll, a read and one that finds nothing. False comes
        back then when the patience of the connection is over, or a read was cut short.

        Raises OSError: the connection broke, or what came is no answer.
        """
        try:
            while self._out:
                self._send()
            while not self.status:
                self._read_head(0 if wait else socket.MSG_DONTWAIT)
                if wait and not self.status:
                    return False
            if to_head:
                return True
            if self._early is not None:
                early, self._early = self._early, None
                self._collect(self._limit)
                self._take(early)
            while not self._is_over:
                self._read_body(wait)
                if wait and not self._is_over:
                    return False
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        if self._collected is not None:
            self.body = bytes(self._collected)
        return True

    def into(self, target: memoryview) -> None:
        """Report where the body belongs once the head is known."""
        self._target = target
        if self._early is not None:
            early, self._early = self._early, None
            self._take(early)

    def _send(self) -> None:
        piece = self._out[0]
        try:
            sent = self.connection.socket.send(piece[:PIECE_BYTES], self.connection.send_flags)
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses a large body answers and hangs up; its answer may lie here already.
            self._out.clear()
            self.reusable = False
            return
        self.progress_bytes += sent
        if sent == len(piece):
            del self._out[0]
        else:
            self._out[0] = piece[sent:]

    def _read_head(self, flags: int) -> None:
        free = memoryview(self._head)[self._head_bytes : self._head_bytes + FIRST_BYTES]
        if not free:
            raise BrokenAnswerError(errno.EPROTO, "the response headers do not end")
        count = self.connection.receive_into(free, 0, flags)
        if not count:
            raise BrokenAnswerError(errno.ECONNRESET, "the server closed the connection without a response")
        if not self._head_bytes:
            self.first_byte_ns = time.monotonic_ns()
        searched = max(0, self._head_bytes - 3)
        self._head_bytes += count
        self.progress_bytes += count
        while (end := self._head.find(b"\r\n\r\n", searched, self._head_bytes)) >= 0:
            self._parse_head(self._head[: end + 2].decode("latin-1"))
            rest = memoryview(self._head)[end + 4 : self._head_bytes]
            if not 100 <= self.status < 200:
                self._begin_body(rest)
                return
            self._interim += 1
            if self._interim > INTERIM_ANSWERS:
                raise BrokenAnswerError(errno.EPROTO, f"{self._interim} responses of {self.status}, and no final one")
            self.status, self._head_bytes, searched = 0, len(rest), 0  # another head follows
            self._head[: len(rest)] = bytes(rest)

    def _parse_head(self, text: str) -> None:
        status = text[9:12]
        if not text.startswith("HTTP/1.") or not status.isdecimal():
            first = text[: text.index("\r\n")]
            raise BrokenAnswerError(errno.EPROTO, f"the response begins with {first[:60]!r}, which is not HTTP")
        self.status = int(status)
        self.succeeded = self.status in (200, 204, 206)
        self._text, self._lower = text, text.lower()
        is_old = text.startswith("HTTP/1.0")
        if is_old or "close" in self._lower:
            closing = self.header("connection").lower()
            if closing == "close" or (is_old and closing != "keep-alive"):
                self.reusable = False

    def _begin_body(self, rest: memoryview) -> None:
        stated = self.header("content-length")
        if self._bodiless or self.status in (204, 304):
            self.length = 0
        elif "chunked" in self._lower and "chunked" in self.header("transfer-encoding").lower():
            self._chunks = Chunks()
        else:
            self.length = number_in(stated)
            self.reusable = self.reusable and self.length is not None
        if not self.succeeded:
            self._collect(ERROR_BYTES)
        elif self._what_is_wrong is not None and (wrong := self._what_is_wrong(self)):
            raise BrokenAnswerError(errno.EPROTO, wrong)
        elif self._target is None and self._chunks is not None:
            self._collect(self._limit)
        elif self._target is None:
            self._early = rest
            return
        self._take(rest)

    def _collect(self, most_bytes: int) -> None:
        self._collected, self._most_bytes = bytearray(), most_bytes

    def _take(self, piece: memoryview) -> None:
        """Put what became of the body where it belongs, and see whether it is all."""
        if self._chunks is None:
            if self.length is not None and len(piece) > self.length - self.got:
                piece, self.reusable = piece[: self.length - self.got], False  # nobody asked for what follows
            self._place(piece)
        else:
            self._raw_bytes += len(piece)
            if self._raw_bytes > 2 * (len(self._target or b"") + self._most_bytes + HEAD_BYTES):
                raise BrokenAnswerError(errno.EPROTO, "the response comes in chunks of a few bytes each")
            for part in self._chunks.parts_of(piece):
                self._place(part)
        self._see_whether_over()

    def _see_whether_over(self) -> None:
        if self._chunks is not None:
            self._is_over = self._is_over or self._chunks.are_over
        elif self.length is not None:
            self._is_over = self._is_over or self.got >= self.length

    def _place(self, part: memoryview) -> None:
        begin, self.got = self.got, self.got + len(part)
        if self._collected is None:
            assert self._target is not None
            if self.got > len(self._target):
                raise BrokenAnswerError(errno.EPROTO, f"the response exceeds the {len(self._target)} bytes wanted")
            self._target[begin : self.got] = part
            return
        self._collected += part[: self._most_bytes - len(self._collected)]
        if self.got > self._most_bytes:
            if self.succeeded:
                text = f"the response is longer than {self._most_bytes >> 10} KiB, the most that such a response has"
                raise BrokenAnswerError(errno.EMSGSIZE, text)
            self._is_over, self.reusable = True, False  # the rest of an error says nothing more

    def _read_body(self, wait: bool) -> None:
        receive_into, target = self.connection.receive_into, self._target
        into_place = self._collected is None and self._chunks is None and target is not None and self.got < len(target)
        if into_place and target is not None:
            most = len(target) if self.length is None else min(len(target), self.length)
            flags = socket.MSG_WAITALL if wait else socket.MSG_DONTWAIT
            count = receive_into(target[self.got : most], 0, flags)
            self.got += count
            self._see_whether_over()
        else:
            piece = bytearray(4 * HEAD_BYTES)
            count = receive_into(piece, 0, 0 if wait else socket.MSG_DONTWAIT)
            self._take(memoryview(piece)[:count])
        self.progress_bytes += count
        if count:
            return
        if self.length is None and self._chunks is None:
            self.length, self._is_over = self.got, True
            return
        of = "" if self.length is None else f" of {self.length}"
        raise BrokenAnswerError(errno.ECONNRESET, f"the response ended after {self.got}{of} bytes")


class Chunks:
    """A body in chunks (RFC 9112, section 7.1), taken apart as it comes."""

    are_over = False

    def __init__(self) -> None:
        self._left = 0
        """Bytes of a chunk that are still to come."""
        self._line = bytearray()
        self._expected = "size"
        """Which line comes next: a `size`, the `end` of a chunk, or one of the `trailer`."""
        self._trailer_bytes = 0

    def parts_of(self, piece: memoryview) -> Iterator[memoryview]:
        """Yield what of a piece is of the body. Raises BrokenAnswerError."""
        data, at = bytes(piece), 0
        while at < len(data) and not self.are_over:
            if self._left:
                part = piece[at : at + self._left]
                self._left -= len(part)
                at += len(part)
                yield part
                continue
            end = data.find(b"\n", at) + 1 or len(data)
            self._line += data[at : min(end, at + CHUNK_LINE_BYTES)]
            at = end
            if len(self._line) >= CHUNK_LINE_BYTES:
                raise _no_chunks()
            if self._line.endswith(b"\n"):
                line = bytes(self._line).rstrip(b"\r\n")
                self._line.clear()
                self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        if self._expected == "size":
            size = line.partition(b";")[0].strip()
            if not _is_hexadecimal(size):
                raise _no_chunks()
            self._left = int(size, 16)
            self._expected = "end" if self._left else "trailer"
        elif self._expected == "end":
            if line:
                raise _no_chunks()
            self._expected = "size"
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > HEAD_BYTES:
                raise _no_chunks()
            self.are_over = not line


_is_hexadecimal = re.compile(rb"[0-9A-Fa-f]{1,15}").fullmatch
_is_number = re.compile("[0-9]{1,18}").fullmatch


def number_in(text: str) -> int | None:
    """Return the number that a header says; None where it says none, or one beyond all reason."""
    return int(text) if _is_number(text) else None


def _no_chunks() -> BrokenAnswerError:
    return BrokenAnswerError(errno.EPROTO, "the chunks of the response can't be parsed")
