"""An S3 server on loopback with a known rate, a known latency to the first byte, and faults on demand.

It keeps objects in memory, or lists a bucket of any number of keys without objects. It does not check signatures; tests
with other servers do. As a program, it serves until its input ends:
`python -m tests.object_server --mb-per-second 100 --latency-ms 20`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Literal
from urllib.parse import parse_qsl, quote_plus, unquote
from xml.sax.saxutils import escape

Answer = tuple[int, dict[str, str], memoryview]
"""Status, headers and body."""
SEND_BYTES = 256 << 10
_LISTED = (
    "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;1&quot;</ETag>"
    "<StorageClass>STANDARD</StorageClass>"
)
"""Fields of every listed object that some clients require."""
SLICE_SECONDS = 0.02
"""Depth of the token bucket: it lets the bytes of so much time pass at once."""


@dataclass(frozen=True, kw_only=True)
class Request:
    number: int
    """From 1, over all connections."""
    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Upload:
    key: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Fault:
    kind: Literal["error", "drop", "cut", "drip", "hang", "etag", "garbage", "body", "raw"]
    """error: `status` and `code`; drop: no answer, but the request is executed; cut: half of the body; drip: single
    bytes; hang: nothing; body: `body` and `headers` with `status`; raw: everything that `raw` yields."""
    status: int = 503
    code: str = "SlowDown"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    raw: Iterable[bytes] = ()


@dataclass(kw_only=True)
class Behaviour:
    """How the server answers; may be changed while it runs."""

    bytes_per_second: float = 0
    """Rate of all bodies together; 0 for no limit."""
    latency_seconds: float = 0
    """Time from the request to the first byte of its answer."""
    fault: Callable[[Request], Fault | None] | None = None
    listed_keys: int = 0
    """Number of keys that are listed below `PREFIX/train/` without objects."""
    listed_bytes: int = 1
    """Their listed size."""


class ObjectServer:
    """Serves until `close`. `requests` has all requests, in order."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self.objects: dict[str, bytes] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self.uploads: dict[str, Upload] = {}
        """Uploads in progress, by their ids."""
        self.sent_bytes = 0
        """Bytes of all answers."""
        self.requests: list[Request] = []
        self.connections = 0
        self.most_in_flight = self._in_flight = 0
        """Maximum number of requests that waited for their first byte at the same time."""
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._socket = socket.create_server(("127.0.0.1", port), backlog=256)
        self.endpoint = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> ObjectServer:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def count(self, method: str) -> int:
        return sum(request.method == method for request in self.requests)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.add(connection)
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as lines:
                while not self._closed.is_set() and self._answer(connection, lines):
                    pass
        finally:
            self._open.discard(connection)

    def _answer(self, connection: socket.socket, lines: BinaryIO) -> bool:
        first = lines.readline().decode("latin-1").split(" ")
        if len(first) < 3:
            return False
        headers = {}
        while (line := lines.readline().decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = lines.read(int(headers.get("content-length", "0")))
        path, _, query = first[1].partition("?")
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        parameters = dict(parse_qsl(query, keep_blank_values=True))
        with self._lock:
            number = len(self.requests) + 1
            request = Request(number=number, method=first[0], bucket=bucket, key=key, query=parameters, headers=headers)
            self.requests.append(request)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        if self.behaviour.latency_seconds:
            time.sleep(self.behaviour.latency_seconds)
        with self._lock:
            self._in_flight -= 1
        fault = self.behaviour.fault(request) if self.behaviour.fault else None
        if fault is None:
            return self._send(connection, request, self._execute(request, body))
        if fault.kind in ("error", "body"):
            fault_body = _error(fault.code) if fault.kind == "error" else memoryview(fault.body)
            return self._send(connection, request, (fault.status, fault.headers, fault_body))
        answer = self._execute(request, body)
        if fault.kind in ("cut", "drip", "etag"):
            return self._send(connection, request, answer, fault.kind)
        if fault.kind == "hang":
            self._closed.wait(3600)
        for data in [b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n\r\n\r\n"] if fault.kind == "garbage" else fault.raw:
            connection.sendall(data)
            self.sent_bytes += len(data)
            if self._closed.is_set():
                break
        return False

    def _execute(self, request: Request, body: bytes) -> Answer:
        if request.method in ("GET", "HEAD") and request.key:
            return self._get(request)
        if request.method == "GET":
            listed = self._uploads() if "uploads" in request.query else self._list(request)
            return 200, {}, memoryview(listed.encode())
        if request.method != "DELETE":
            return self._put(request, body)
        if "uploadId" in request.query:
            self.uploads.pop(request.query["uploadId"], None)
        else:
            self.objects.pop(request.key, None)
            self.metadata.pop(request.key, None)
        return 204, {}, memoryview(b"")

    def _size(self, key: str) -> int:
        return len(self.objects[key]) if key in self.objects else self.behaviour.listed_bytes

    def _get(self, request: Request) -> Answer:
        data = self.objects.get(request.key)
        if data is None and request.method == "HEAD" and self.behaviour.listed_keys and "/train/" in request.key:
            return 200, {"Content-Length": str(self.behaviour.listed_bytes)}, memoryview(b"")
        if data is None:
            return 404, {}, _error("NoSuchKey")
        etag = _etag(data)
        about = {"ETag": etag} | self.metadata.get(request.key, {})
        if request.headers.get("if-match", etag) != etag:
            return 412, {}, _error("PreconditionFailed")
        view, size = memoryview(data), len(data)
        byte_range = request.headers.get("range", "")
        if not byte_range:
            return 200, about, view
        begin, end = (int(number) for number in byte_range.removeprefix("bytes=").split("-"))
        if begin >= size:
            return 416, {}, _error("InvalidRange")
        end = min(end, size - 1)
        return 206, about | {"Content-Range": f"bytes {begin}-{end}/{size}"}, view[begin : end + 1]

    def _put(self, request: Request, body: bytes) -> Answer:
        digest = request.headers.get("x-amz-content-sha256", "")
        if len(digest) == 64 and digest != hashlib.sha256(body).hexdigest():
            return 400, {}, _error("XAmzContentSHA256Mismatch")
        query = request.query
        metadata = {name: value for name, value in request.headers.items() if name.startswith("x-amz-meta-")}
        if "uploads" in query:
            number = f"upload-{request.number}"
            self.uploads[number] = Upload(key=request.key, metadata=metadata)
            return 200, {}, memoryview(f"<R><UploadId>{number}</UploadId></R>".encode())
        upload = self.uploads.get(query.get("uploadId", ""))
        if "uploadId" in query and upload is None:
            return 404, {}, _error("NoSuchUpload")
        answer = b""
        if upload is not None and "partNumber" in query:
            upload.parts[int(query["partNumber"])] = body
            return 200, {"ETag": _etag(body)}, memoryview(b"")
        if upload is not None:
            del self.uploads[query["uploadId"]]
            body, metadata = b"".join(upload.parts[number] for number in sorted(upload.parts)), upload.metadata
            answer = b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>"
        self.objects[request.key], self.metadata[request.key] = bytes(body), metadata
        return 200, {"ETag": _etag(body)}, memoryview(answer)

    def _uploads(self) -> str:
        listed = "".join(
            f"<Upload><Key>{escape(upload.key)}</Key><UploadId>{number}</UploadId></Upload>"
            for number, upload in self.uploads.items()
        )
        return f"<ListMultipartUploadsResult>{listed}</ListMultipartUploadsResult>"

    def _list(self, request: Request) -> str:
        prefix, max_keys = request.query.get("prefix", ""), int(request.query.get("max-keys", "1000"))
        begin = int(request.query.get("continuation-token", "0"))
        total = self.behaviour.listed_keys
        folders: list[str] = []
        if total and prefix.endswith("/train/"):
            numbers = range(begin, min(begin + max_keys, total))
            names = [f"{prefix}img_{number:0{len(str(total))}}_of_{total}.npz" for number in numbers]
        else:
            keys = [f"{prefix}train/x"] if total else self.objects
            below = sorted(key for key in keys if key.startswith(prefix))
            by_folder = request.query.get("delimiter", "")
            cut = [key[: len(prefix)] + key[len(prefix) :].partition("/")[0] for key in below]
            if begin == 0:
                folders = sorted({f"{c}/" for c, key in zip(cut, below, strict=True) if by_folder and c != key})
            plain = [key for c, key in zip(cut, below, strict=True) if not by_folder or c == key]
            total, names = len(plain), plain[begin : begin + max_keys]
        more = begin + len(names) < total
        page = f"<Name>bucket</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{max_keys}</MaxKeys>"
        token = f"<NextContinuationToken>{begin + len(names)}</NextContinuationToken>" if more else ""
        encoding, text = request.query.get("encoding-type", ""), escape
        if encoding:
            page += f"<EncodingType>{encoding}</EncodingType>"
            text = partial(quote_plus, safe="/")
        contents = "".join(
            f"<Contents><Key>{text(name)}</Key><Size>{self._size(name)}</Size>{_LISTED}</Contents>" for name in names
        )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{text(name)}</Prefix></CommonPrefixes>" for name in folders)
        page += f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}{prefixes}"
        return f"<ListBucketResult>{page}</ListBucketResult>"

    def _send(self, connection: socket.socket, request: Request, answer: Answer, kind: str = "") -> bool:
        """Send an answer, with the fault `kind` if given; return whether the connection stays open."""
        status, headers, body = answer
        if kind == "etag":
            headers = headers | {"ETag": '"another"'}
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        length = [] if status == 204 or "Content-Length" in headers else [("Content-Length", str(len(body)))]
        lines = "".join(f"{name}: {value}\r\n" for name, value in (("Date", date), *length, *headers.items()))
        connection.sendall(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode())
        if request.method == "HEAD":
            return True
        if kind == "drip":
            for at in range(len(body)):
                connection.sendall(body[at : at + 1])
                if self._closed.wait(0.05):
                    return False
        sent = len(body) // 2 if kind == "cut" else len(body)
        for at in range(0, sent, SEND_BYTES):
            data = body[at : min(at + SEND_BYTES, sent)]
            self._wait_for(len(data))
            connection.sendall(data)
        return kind != "cut"

    def _wait_for(self, size_bytes: int) -> None:
        """Wait for tokens for so many bytes, from the bucket that all connections share."""
        rate = self.behaviour.bytes_per_second
        if not rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - SLICE_SECONDS) + size_bytes / rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


@contextlib.contextmanager
def object_server(behaviour: Behaviour | None = None) -> Iterator[ObjectServer]:
    with ObjectServer(behaviour) as server:
        yield server


def _etag(data: bytes) -> str:
    return f'"{len(data):x}-{hash(data[:4096]) & 0xFFFFFFFF:x}"'


def _error(code: str) -> memoryview:
    return memoryview(f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as asked</Message></Error>".encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--mb-per-second", type=float, default=0.0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--listed-keys", type=int, default=0)
    args = parser.parse_args()
    rate, latency = 1e6 * args.mb_per_second, args.latency_ms / 1000
    behaviour = Behaviour(bytes_per_second=rate, latency_seconds=latency, listed_keys=args.listed_keys)
    with ObjectServer(behaviour) as server:
        print(server.endpoint, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
