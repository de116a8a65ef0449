"""S3 client: signs, sends, retries, counts and times requests; one thread keeps several in flight.

A thread drives its own requests by poll(2). So a loader's worker needs no further threads, its CPU time is that of one
thread, and a fork leaves no threads behind. A request that is alone in flight is waited for in a blocking read: for
small objects each wake-up, and each read that finds nothing, costs as much as copying the data.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import random
import re
import select
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from datagen.errors import DatasetError, ServerError, SpaceError, no_such_file
from datagen.storage._http_exchange import BODY_BYTES, Address, BrokenResponseError, Connection, Exchange, number_in
from datagen.storage._request_counts import RequestCounts
from datagen.storage._s3_options import Options
from datagen.storage._s3_signing import EMPTY_SHA256, SOURCES, Signer, query_text, quoted_path
from datagen.storage._s3_xml import LIST_BYTES, WrongXmlError, error_in

CONNECT_SECONDS = 10.0  # Linux repeats a lost SYN after 1, 3 and 7 s
MIN_PROGRESS_BYTES = 64 << 10  # a request that moves less within the timeout is aborted: the server hangs, or trickles
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.1, 20.0  # 20 s: as the AWS SDKs' standard mode
RETRYABLE = (408, 429, 500, 502, 503, 504)  # HTTP statuses of transient errors
RETRYABLE_CODES = (
    *("RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"),
    *("XAmzContentSHA256Mismatch", "BadDigest", "IncompleteBody"),  # the body was damaged on its way to the server
)
REFUSALS = {
    "NoSuchUpload": "another program or a lifecycle rule of the bucket aborted the upload: run the command again",
    "RequestTimeTooSkewed": "the clocks of this host and of the server differ too much: set them (ntp)",
    **dict.fromkeys(
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity"),
        f"the server does not accept these credentials. They come from: {SOURCES}",
    ),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"),
        f"the credentials have expired and can't be renewed. They come from: {SOURCES}",
    ),
}
"""Code of a refusal that is of no use to repeat -> what it means, and what to do."""
NO_SPACE = ("QuotaExceeded", "StorageFull", "InsufficientStorage")
"""Ends of the codes with which Ceph (QuotaExceeded) and MinIO (XMinioAdminBucketQuotaExceeded, ...) refuse a PUT."""
REFUSED = (400, 401, 403)  # statuses that are explained only by the response's body, which a HEAD does not have
NO_TLS = "WRONG_VERSION_NUMBER"  # openSSL's reason when the peer does not speak TLS
MESSAGE_CHARACTERS = 300  # maximum length of a server's error text in our messages
OPEN_END = 1 << 62  # an offset beyond the end of any object
MAX_IDLE_CONNECTIONS = 64  # maximum connections of a process to one bucket that are kept open between requests
_content_range = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/(?:([0-9]{1,18})|\*)", re.IGNORECASE).fullmatch


class Span(NamedTuple):
    """The byte range of an object to request: from `begin` up to, not including, `end`."""

    begin: int
    end: int
    size_bytes: int | None = None  # size of the whole object, if known; `end` is then at most that

    @property
    def text(self) -> str:
        return f"bytes={self.begin}-{self.end - 1}"


@dataclass(slots=True, kw_only=True)
class Request:
    """One request with its state over all attempts."""

    kind: str  # its counter in `RequestCounts`: get, head, list, put, delete
    method: str
    key: str = ""  # empty for the bucket itself
    query: Sequence[tuple[str, str]] = ()
    signed_headers: tuple[tuple[str, str], ...] = ()  # headers named x-amz-*, sorted by name
    body: Sequence[memoryview] = ()
    payload_sha256: str = EMPTY_SHA256
    span: Span | None = None  # the byte range of a ranged GET; a success with any other bytes is retried
    etag: str = ""  # at open, sent as If-Match: reading an object that changed fails
    target: memoryview | None = None  # buffer for the body of a successful response
    fills: bool = True  # that body must fill the target exactly; else it may be shorter
    parse: Callable[[bytes], Any] | None = None  # makes `content` of a successful body, or raises WrongXmlError
    content: Any = None
    attempts: int = 0
    accepted: tuple[int, ...] = ()  # error statuses that are not retried but returned, as the caller handles them
    response: Exchange | None = None  # the final response; None until then
    retry_seconds: float = 0.0  # delay before the next attempt
    exchange: Exchange = field(init=False)  # the present attempt, or the last one
    deadline_ns: int = 0  # when `MIN_PROGRESS_BYTES` must have been moved since the last check
    checked_bytes: int = 0  # the exchange's `progress_bytes` at the last check
    was_collecting: bool = False  # a short body (error, listing) was arriving: it must end by the next check


class Client:
    """Client of one bucket. Threads share it, but each drives its own requests."""

    def __init__(
        self, options: Options, bucket: str, signer: Signer, tls: ssl.SSLContext | None, counts: RequestCounts
    ) -> None:
        self.bucket = bucket
        self.endpoint = options.endpoint
        self._options = options
        self._path_style = options.path_style or "." in bucket  # no certificate fits a name with dots
        self.counts = counts
        self._signer = signer
        self._tls = tls
        self._idle: deque[Connection] = deque()
        self._before_key = f"/{bucket}/" if self._path_style else "/"
        self._timeout_ns = round(1e9 * options.timeout_seconds)
        self._next_address = itertools.count(os.getpid())

    def request(self, request: Request) -> Exchange:
        """Return the response of a request. Raises as `request_all`."""
        self.request_all([request])
        assert request.response is not None
        return request.response

    def request_all(self, requests: Iterable[Request], depth: int = 1) -> None:
        """Complete all requests, at most `depth` in flight, retrying failed ones.

        `requests` is consumed lazily, whenever fewer than `depth` are in flight: it may be a long or endless iterator.

        Raises:
            FileNotFoundError: there is no such object.
            ServerError: credentials, bucket, region or endpoint are wrong, or all attempts failed.
            DatasetError: all attempts to GET an object failed, or the object changed.
        """
        waiting = iter(requests)
        next_request = next(waiting, None)
        delayed: list[tuple[float, int, Request]] = []
        active: dict[int, Request] = {}
        order = itertools.count()
        poller = select.poll()

        def retry(request: Request) -> None:
            heapq.heappush(delayed, (time.monotonic() + request.retry_seconds, next(order), request))

        def proceed(request: Request) -> None:
            alone = not active and not delayed and (depth == 1 or next_request is None)
            if not self._advance(request, wait=alone):
                descriptor = request.exchange.connection.descriptor
                active[descriptor] = request
                poller.register(descriptor, select.POLLIN | (select.POLLOUT if request.exchange.wants_to_send else 0))
            elif request.response is None:
                retry(request)

        try:
            while next_request is not None or delayed or active:
                while len(active) < depth:
                    if delayed and delayed[0][0] <= time.monotonic():
                        request = heapq.heappop(delayed)[2]
                    elif next_request is not None:
                        request, next_request = next_request, next(waiting, None)
                    else:
                        break
                    try:
                        self.send(request)
                    except OSError as error:
                        self._note_failure(request, None, error)
                        retry(request)
                        continue
                    proceed(request)
                ready = poller.poll(self._poll_ms(active, delayed)) if active else []
                if not active and delayed:
                    time.sleep(max(0.0, delayed[0][0] - time.monotonic()))
                for descriptor, _ in ready:
                    request = active.pop(descriptor)  # first: `finally` must not abort it again if proceed raises
                    poller.unregister(descriptor)
                    proceed(request)
                for descriptor in self._stalled(active):
                    stalled = active.pop(descriptor)
                    poller.unregister(descriptor)
                    self._abort(stalled)
                    seconds = f"{self._options.timeout_seconds:g} s"
                    text = f"no more than {MIN_PROGRESS_BYTES >> 10} KiB arrived in {seconds}"
                    if not stalled.exchange.status:
                        text = f"no response arrived within {seconds}"
                    elif stalled.was_collecting:
                        text = f"the response, which should be short, did not end in {seconds}"
                    self._note_failure(stalled, None, TimeoutError(errno.ETIMEDOUT, text))
                    retry(stalled)
        finally:
            for request in active.values():
                self._abort(request)

    def send(self, request: Request) -> None:
        """Start an attempt: connect and prepare the exchange; `advance` sends and receives. Raises OSError."""
        request.attempts += 1
        if request.attempts > 1:
            self.counts.add("retried")
        connection = self._connection()
        self.counts.sent(request.kind)
        request.exchange = Exchange(
            connection,
            self._header(request, connection.address),
            request.body,
            request.target,
            bodiless=request.method == "HEAD",
            most_bytes=LIST_BYTES if request.kind == "list" else BODY_BYTES,
            header_problem=partial(_part_problem, request) if request.method == "GET" and request.key else None,
        )
        request.deadline_ns = request.exchange.began_ns + self._timeout_ns
        request.checked_bytes, request.was_collecting = 0, False

    def _advance(self, request: Request, *, wait: bool) -> bool:
        """Advance an attempt; return whether it has ended: with a response, or a failure to be retried."""
        exchange = request.exchange
        try:
            if not exchange.advance(wait=wait):
                return False
        except OSError as error:
            self._abort(request)
            self._note_failure(request, None, error)
            return True
        self._release(request, exchange)
        problem = self._problem(request, exchange)
        if problem is None:
            request.response = exchange
        else:
            self._note_failure(request, exchange, problem)
        return True

    def _problem(self, request: Request, exchange: Exchange) -> OSError | None:
        """Return what is wrong with a complete response; None for a success or an accepted status."""
        if not exchange.succeeded:
            if exchange.status in request.accepted:
                return None
            return OSError(errno.EREMOTEIO, f"{exchange.status} {_code(exchange)}".strip())
        if request.etag and exchange.header("etag") not in ("", request.etag):
            raise self._changed(request)
        if request.target is not None and request.fills and exchange.body_bytes != len(request.target):
            text = f"the response has {exchange.body_bytes} bytes of {len(request.target)}"
            return BrokenResponseError(errno.ECONNRESET, text)
        if request.method == "HEAD" and request.key and number_in(exchange.header("content-length")) is None:
            return BrokenResponseError(errno.EPROTO, "the response has no Content-Length")
        if request.parse is None:
            return None
        if code := _code(exchange):  # S3 may start a 200 response and report an error in its body
            return OSError(errno.EREMOTEIO, f"{exchange.status} {code}")
        try:
            request.content = request.parse(exchange.body)
        except WrongXmlError as error:
            return BrokenResponseError(errno.EPROTO, f"the response {error}")
        return None

    def _note_failure(self, request: Request, exchange: Exchange | None, error: OSError) -> None:
        """Count a failed attempt and set the request's delay before the next one; raise if retrying is of no use."""
        request.retry_seconds = 0.0
        self.counts.add("failed")
        if exchange is not None:
            code, status = _code(exchange), exchange.status
            if status in (503, 429):
                self.counts.add("slow_down")
            if request.method == "HEAD" and status in REFUSED:
                # Only a GET's error has a body that says why; a missing or empty object is none
                accepted = (404, 416)
                self.request(Request(kind="get", method="GET", key=request.key, span=Span(0, 1), accepted=accepted))
            is_refusal = not exchange.succeeded and (status < 500 or code.endswith(NO_SPACE))
            if is_refusal and status not in RETRYABLE and code not in RETRYABLE_CODES:
                raise self._refusal(request, exchange, code)
        if isinstance(error, ssl.SSLCertVerificationError):
            raise ServerError(
                f"{self.endpoint}: its certificate is not trusted ({error.verify_message}): give the "
                "certificate authority in storage.storage_options.ca_bundle, AWS_CA_BUNDLE or SSL_CERT_FILE (a file of "
                "certificates), or the address that the certificate names"
            ) from error
        if isinstance(error, ssl.SSLError) and error.reason == NO_TLS:
            raise ServerError(
                f"{self.endpoint}: the server does not speak TLS there: wanted its address with http://, or the "
                "port that speaks TLS"
            ) from error
        if request.attempts >= self._options.attempts:
            raise self._exhausted(request, error, answered=exchange is not None) from error
        backoff = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** (request.attempts - 1))
        retry_after = number_in(exchange.header("retry-after")) if exchange is not None else None
        minimum = min(LONGEST_BACKOFF_SECONDS, float(retry_after or 0))
        request.retry_seconds = max(minimum, backoff * random.uniform(0.5, 1.0))  # jitter: clients retry at other times

    def _exhausted(self, request: Request, error: OSError, *, answered: bool) -> Exception:
        cause = error.strerror or str(error)
        what = f"{self.where(request)} failed {request.attempts} times, the last time because of: {cause}"
        is_read = request.key and request.kind == "get"
        if is_read or answered:
            kind = DatasetError if is_read else ServerError
            return kind(
                f"{what}. Check whether the server is up and how loaded it is; "
                "storage.storage_options.s3_max_attempts sets how many times to try, timeout_seconds how long to wait"
            )
        return ServerError(
            f"{what}. Wanted an S3 server at {self.endpoint}: check that it is running, and that "
            "storage.storage_options.endpoint_url is its address"
        )

    def _refusal(self, request: Request, exchange: Exchange, code: str) -> Exception:
        status, where = exchange.status, self.where(request)
        text = error_in(exchange.body).message[:MESSAGE_CHARACTERS]
        message = f"{where}: {status} {code}{f' ({text})' if text else ''}".rstrip()
        bucket = self.bucket
        if code == "NoSuchBucket" or (status == 404 and not request.key):
            return ServerError(
                f"there is no bucket {bucket!r} at {self.endpoint}: make it, or set storage.storage_root to one"
            )
        if code in REFUSALS:
            return ServerError(f"{message}: {REFUSALS[code]}")
        if status == 404:
            return no_such_file(f"s3://{bucket}/{request.key}")
        region = exchange.header("x-amz-bucket-region")
        if region or code in ("AuthorizationHeaderMalformed", "PermanentRedirect") or status in (301, 307):
            named = f" {region!r}" if region and region != self._signer.region else ""
            return ServerError(
                f"{message}: the bucket is in another region{named} than {self._signer.region!r}: set "
                "storage.storage_options.region, or AWS_REGION"
            )
        if status == 400 and b"HTTPS" in exchange.body[:1000]:  # plain text of Go's servers, HTML of nginx
            return ServerError(
                f"{self.endpoint}: the server speaks TLS there: wanted its address with https:// in "
                "storage.storage_options.endpoint_url"
            )
        if code.endswith(NO_SPACE):
            return SpaceError(f"{message}: bucket {bucket!r} is full: raise its quota, remove objects, or use another")
        if status == 403:
            return ServerError(
                f"{message}: these credentials are not allowed to do that: let them list, read and write bucket "
                f"{bucket!r}, or use others"
            )
        if status == 412:
            return self._changed(request)
        return ServerError(f"{message}: the server refuses the request; wanted an S3 server at {self.endpoint}")

    def _changed(self, request: Request) -> DatasetError:
        return DatasetError(
            f"{self.where(request)}: the object changed while it was read (its ETag was {request.etag}): leave the "
            "dataset alone during a run, and run again"
        )

    def where(self, request: Request) -> str:
        """Return method, object and server of a request for messages, without credentials."""
        key = f"/{request.key}" if request.key else ""
        return f"{request.method} s3://{self.bucket}{key} at {self.endpoint}"

    def _header(self, request: Request, address: Address) -> bytes:
        path = self._before_key + quoted_path(request.key) if request.key else self._before_key.rstrip("/") or "/"
        host = address.authority if self._path_style else f"{self.bucket}.{address.authority}"
        query = query_text(request.query) if request.query else ""
        signed = self._signer.lines(request.method, host, path, query, request.payload_sha256, request.signed_headers)
        others = "" if request.span is None else f"range: {request.span.text}\r\n"
        if request.etag:
            others += f"if-match: {request.etag}\r\n"
        if request.method in ("PUT", "POST"):
            others += f"content-length: {sum(len(part) for part in request.body)}\r\n"
        url = f"{path}?{query}" if query else path
        return f"{request.method} {url} HTTP/1.1\r\n{signed}{others}\r\n".encode()

    def _connection(self) -> Connection:
        """Return an idle connection that is still open, or a new one."""
        while self._idle:
            try:
                idle = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if idle.is_quiet():
                return idle
            self._close(idle)
        address = self._options.addresses[next(self._next_address) % len(self._options.addresses)]
        timeout = self._options.timeout_seconds
        opened = Connection(address, self._tls if address.is_tls else None, min(CONNECT_SECONDS, timeout), timeout)
        self.counts.add("connections_opened")
        self.counts.add("connections_open")
        return opened

    def _release(self, request: Request, exchange: Exchange) -> None:
        self.counts.ended(exchange.body_bytes)
        if request.kind == "get":
            began_ns = exchange.began_ns
            self.counts.answered(exchange.first_byte_ns - began_ns, time.monotonic_ns() - began_ns)
        if exchange.reusable and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(exchange.connection)
        else:
            self._close(exchange.connection)

    def _abort(self, request: Request) -> None:
        self.counts.ended(request.exchange.body_bytes)
        self._close(request.exchange.connection)

    def _close(self, connection: Connection) -> None:
        self.counts.add("connections_open", -1)
        connection.close()

    def _stalled(self, active: dict[int, Request]) -> list[int]:
        """Return the requests that moved too few bytes by their deadline; give the others another timeout."""
        now = time.monotonic_ns()
        stalled = []
        for descriptor, request in active.items():
            if now < request.deadline_ns:
                continue
            moved = request.exchange.progress_bytes - request.checked_bytes
            if moved < MIN_PROGRESS_BYTES or request.was_collecting:
                stalled.append(descriptor)
            request.was_collecting = request.exchange.collected is not None
            request.checked_bytes += moved
            request.deadline_ns = now + self._timeout_ns
        return stalled

    def _poll_ms(self, active: dict[int, Request], delayed: list[tuple[float, int, Request]]) -> float:
        now = time.monotonic_ns()
        seconds = [(request.deadline_ns - now) / 1e9 for request in active.values()]
        if delayed:
            seconds.append(delayed[0][0] - now / 1e9)
        return max(0.0, 1000 * min(seconds)) + 1


def _code(exchange: Exchange) -> str:
    """Return the code of an S3 error in the body (SlowDown, NoSuchKey, ...); '' if it holds none."""
    return error_in(exchange.body).code if b"<Error" in exchange.body[:1000] else ""


def _part_problem(request: Request, exchange: Exchange) -> str:
    """Return why a successful response does not hold the requested bytes; '' if it does."""
    span, length, content_range = request.span, exchange.length, exchange.header("content-range")
    if span is not None:
        exact_range = f"bytes {span.begin}-{span.end - 1}/{span.size_bytes}"
        if length == span.end - span.begin and content_range == exact_range:
            return ""  # fast path of nearly all responses
    if exchange.status == 204:
        return "the response has no object"
    expected_length = None if request.target is None or not request.fills else len(request.target)
    if content_range or exchange.status == 206:  # rclone sends a range with status 200
        expected_length = _requested_length(span or Span(0, OPEN_END), content_range)
        if expected_length is None:
            requested = "all of the object"
            if span is not None:
                requested = span.text if span.size_bytes is None else f"{span.text} of {span.size_bytes}"
            return f"{content_range[:60]!r} arrived where {requested} was requested"
    elif span is not None and (span.begin or span.size_bytes is not None or length is None or length > span.end):
        return f"all of the object arrived where {span.text} was requested: the server does not support ranges"
    if length is None or expected_length is None or length == expected_length:
        return ""
    return f"the response has {length} bytes of {expected_length}"


def _requested_length(span: Span, content_range: str) -> int | None:
    """Return the bytes of a response with this Content-Range; None if it is not the requested part of the object.

    The part may end before the requested end if the object does: "bytes 0-9/10" answers a request for bytes 0-99.
    """
    match = _content_range(content_range)
    if match is None:
        return None
    begin, end = int(match[1]), int(match[2]) + 1
    size_bytes = int(match[3]) if match[3] else span.size_bytes
    if span.size_bytes is not None and span.size_bytes != size_bytes:
        return None
    expected_end = end if size_bytes is None else min(span.end, size_bytes)
    return end - begin if begin == span.begin and end == expected_end else None
