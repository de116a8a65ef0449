"""One request and its answer over HTTP/1.1 (RFC 9112), on a socket that never blocks, its body read where it belongs.

Own code because of what it costs: at objects of 128 KiB a library's client takes 1.4 (obstore) to 14 (boto3) CPU
seconds a GB, this 0.5, for it makes no object of the answer and copies no byte of it.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Sequence

HEAD_BYTES = 16 << 10
"""Most bytes of an answer's head, and those of a first read."""
PIECE_BYTES = 4 << 20
"""Sent at a time."""
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


class Connection:
    """An open connection, which serves one request after the other."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, timeout_seconds: float) -> None:
        """Connect. Raises OSError."""
        self.address = address
        self.scratch = bytearray(HEAD_BYTES)
        self.tls_cpu_ns = 0
        """CPU time of this thread that TLS took so far: its handshake, and reading, as every 16th read tells it."""
        self._reads = 0
        plain = socket.create_connection((address.host, address.port), timeout_seconds)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            began_ns = time.thread_time_ns()
            self.socket = tls.wrap_socket(plain, server_hostname=address.host) if tls else plain
            if tls:
                self.tls_cpu_ns = time.thread_time_ns() - began_ns
        except BaseException:
            plain.close()
            raise
        self.receive_into = self._receive_tls if tls else self.socket.recv_into
        self.socket.setblocking(False)

    def _receive_tls(self, buffer: memoryview | bytearray) -> int:
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

    def __init__(
        self,
        connection: Connection,
        head: bytes,
        body: Sequence[memoryview],
        target: memoryview | None,
        *,
        bodiless: bool = False,
    ) -> None:
        """Begin with a request's head and body; an answer's body of success goes to `target` as far as that is long.

        `bodiless` says that the answer will have none (HEAD).
        """
        self.connection = connection
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        """The answer's body where `target` does not have it."""
        self.got = 0
        """Bytes of the answer's body so far."""
        self.length: int | None = None
        """Bytes of the answer's body; None where its end tells."""
        self.began_ns = time.monotonic_ns()
        self.first_byte_ns = 0
        self.progress_bytes = 0
        """All bytes that went over the connection, either way."""
        self.reusable = True
        self._target = target
        self._bodiless = bodiless
        self._out = [memoryview(head), *body]
        self._head = connection.scratch
        self._head_bytes = 0
        self._collected: bytearray | None = None
        self._chunked = False

    @property
    def wants_to_send(self) -> bool:
        return bool(self._out)

    @property
    def has_head(self) -> bool:
        return self.status != 0

    def advance(self, *, to_head: bool = False) -> bool:
        """Send and read as far as the socket lets it; return whether the answer is whole, or its head with `to_head`.

        Raises OSError: the connection broke, or what came is no answer.
        """
        try:
            while self._out:
                self._send()
            while not self.has_head:
                self._read_head()
            if to_head:
                return True
            while not self._is_whole():
                self._read_body()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        if self._chunked:
            self._collected = _unchunked(self._collected or bytearray())
        self.body = bytes(self._collected or b"")
        return True

    def into(self, target: memoryview) -> None:
        """Say where the body belongs once the head is known."""
        self._target = target
        if self._collected is not None and not self._chunked:
            early = self._collected[: len(target)]
            target[: len(early)] = early
            self._collected = None

    def _send(self) -> None:
        piece = self._out[0]
        try:
            sent = self.connection.socket.send(piece[:PIECE_BYTES])
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

    def _read_head(self) -> None:
        room = memoryview(self._head)[self._head_bytes :]
        if not room:
            raise BrokenAnswerError(errno.EPROTO, "the head of the answer does not end")
        count = self.connection.receive_into(room)
        if not count:
            raise BrokenAnswerError(errno.ECONNRESET, "the server closed the connection without an answer")
        if not self._head_bytes:
            self.first_byte_ns = time.monotonic_ns()
        searched = max(0, self._head_bytes - 3)
        self._head_bytes += count
        self.progress_bytes += count
        end = self._head.find(b"\r\n\r\n", searched, self._head_bytes)
        if end >= 0:
            self._parse_head(bytes(self._head[:end]))
            rest = memoryview(self._head)[end + 4 : self._head_bytes]
            if self.status == 100 and not self._bodiless:  # Continue: another head follows
                self.status, self._head_bytes = 0, len(rest)
                self._head[: len(rest)] = bytes(rest)
                return
            self._begin_body(rest)

    def _parse_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise BrokenAnswerError(errno.EPROTO, f"the answer begins with {lines[0][:60]!r}, which is no HTTP")
        self.status = int(words[1])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        closing = self.headers.get("connection", "").lower()
        if closing == "close" or (words[0] == "HTTP/1.0" and closing != "keep-alive"):
            self.reusable = False

    def _begin_body(self, rest: memoryview) -> None:
        stated = self.headers.get("content-length", "")
        if self._bodiless or self.status in (204, 304):
            self.length = 0
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunked = True
        elif stated.isdigit():
            self.length = int(stated)
        else:
            self.reusable = False
        if not self.succeeded or self._chunked or self._target is None:
            self._collected = bytearray(rest)
            self.got = len(rest)
            return
        count = min(len(rest), len(self._target))
        self._target[:count] = rest[:count]
        self.got = len(rest)

    @property
    def succeeded(self) -> bool:
        return self.status in (200, 204, 206)

    def _is_whole(self) -> bool:
        if self._chunked:
            return _ends_chunked(self._collected or bytearray())
        return self.length is not None and self.got >= self.length

    def _read_body(self) -> None:
        receive_into, target = self.connection.receive_into, self._target
        if self._collected is None and target is not None and self.got < len(target):
            most = len(target) if self.length is None else min(len(target), self.length)
            count = receive_into(target[self.got : most])
        else:
            piece = bytearray(4 * HEAD_BYTES)
            count = receive_into(piece)
            if self._collected is not None:
                self._collected += piece[:count]
        self.got += count
        self.progress_bytes += count
        if count:
            return
        if self.length is None and not self._chunked:
            self.length = self.got
            return
        of = "" if self.length is None else f" of {self.length}"
        raise BrokenAnswerError(errno.ECONNRESET, f"the answer ended after {self.got}{of} bytes")


def _ends_chunked(data: bytearray) -> bool:
    return data.endswith(b"0\r\n\r\n") and (len(data) == 5 or data.endswith(b"\r\n0\r\n\r\n"))


def _unchunked(data: bytearray) -> bytearray:
    plain, at = bytearray(), 0
    while True:
        end = data.find(b"\r\n", at)
        try:
            size = int(bytes(data[at:end]).split(b";")[0], 16) if end >= 0 else -1
        except ValueError:
            size = -1
        if size < 0:
            raise BrokenAnswerError(errno.EPROTO, "the chunks of the answer can't be told apart")
        if size == 0:
            return plain
        plain += data[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
