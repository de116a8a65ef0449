"""S3 client: signs, sends, retries, counts and times requests; one thread keeps several in flight.

Each thread drives its own requests by poll(2). A loader's worker therefore needs no further threads, its CPU time is
that of one thread, and a fork loses no thread. The response to a request that is alone in flight is read by blocking
calls: for small objects, each wake-up and each read that finds nothing would cost as much as copying the data.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import os
import random
import select
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from datagen.errors import DatasetError, ServerError, SpaceError, no_such_file
from datagen.storage._http_exchange import BrokenResponseError, Connection, Exchange, number_in
from datagen.storage._request_counts import RequestCounts
from datagen.storage._s3_access import EMPTY_SHA256, Headers, Options, Signer, query_text, quoted_path
from datagen.storage._s3_responses import ADVICE, NO_SPACE, REGION_ADVICE, RETRYABLE, code_in, error_in, range_problem
from datagen.storage.storage_base import Bytes

POLL_MS = 50  # duration of a poll: how late a timeout may be noticed, or a retry sent while requests are in flight
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.1, 20.0  # 20 s: as the AWS SDKs' standard mode
UNEXPLAINED_BY_HEAD = (400, 401, 403)  # statuses that only a response's body explains; HEAD's responses have none
NO_TLS = "WRONG_VERSION_NUMBER"  # OpenSSL's reason when the peer does not speak TLS
MESSAGE_CHARACTERS = 300  # maximum length of a server's error text in our messages
MAX_IDLE_CONNECTIONS = 64  # maximum connections of a process that are kept open between requests
# Steps of a request. Each yields what the next one waits for: an exchange with the server, or a time (monotonic, ns)
Steps = Generator[Exchange | int, None, None]


@dataclass(slots=True, kw_only=True)
class Request:
    """One request, and its response."""

    method: str
    bucket: str
    key: str = ""  # empty for the bucket itself
    query: Sequence[tuple[str, str]] = ()
    signed_headers: Headers = ()  # headers named x-amz-*, sorted by name
    body: Bytes = b""
    payload_sha256: str = EMPTY_SHA256
    begin: int = 0
    end: int | None = None  # end of the bytes requested (exclusive); None: all of the object is requested
    size_bytes: int | None = None  # size of the object, if known
    etag: str = ""  # of the object when it was opened; sent as If-Match, so that reading a changed object fails
    target: memoryview | None = None  # buffer for the body of a successful response
    parse: Callable[[bytes], Any] | None = None  # turns a successful body into `content`; raises BrokenResponseError
    content: Any = None
    accepted: tuple[int, ...] = ()  # error statuses that the caller handles, so that they are returned, not retried
    response: Exchange = field(init=False)  # the last response; set when the client has completed the request

    @property
    def counter(self) -> str:
        """Name of the counter in `RequestCounts` that counts this request."""
        if self.method == "GET":
            return "get" if self.key else "list"
        return "put" if self.method == "POST" else self.method.lower()


class Client:
    """Client of a server. Threads share it, but each drives its own requests."""

    def __init__(self, options: Options, counts: RequestCounts) -> None:
        self.endpoint = options.endpoint_url
        self.counts = counts
        self._options = options
        self._signer = Signer(options.s3_profile, options.region)
        self._tls = options.tls()
        self._idle: deque[Connection] = deque()
        self._next_address = itertools.count(os.getpid())

    def request(self, request: Request) -> Exchange:
        """Return the response of a request. Raises as `request_all`."""
        self.request_all([request])
        return request.response

    def request_all(self, requests: Sequence[Request], depth: int = 1) -> None:
        """Complete all requests, at most `depth` in flight, retrying failed ones.

        Raises FileNotFoundError: there is no such object; ServerError: credentials, bucket, region or endpoint are
        wrong, or all attempts failed; DatasetError: all attempts to GET an object failed, or the object changed.
        """
        tie_breaker = itertools.count()  # orders heap entries of equal times, because generators can't be compared
        in_flight: dict[int, tuple[Exchange, Steps]] = {}  # by descriptor of the connection
        poller = select.poll()

        def is_alone() -> bool:
            return not in_flight and (depth == 1 or not scheduled)

        # Heap of (time to start or retry, tie-breaker, steps) of requests; times are monotonic, in ns
        scheduled = [(0, next(tie_breaker), self._complete(request, is_alone)) for request in requests]

        def advance(steps: Steps) -> None:
            waits_for = next(steps, None)  # None: the request is complete
            if isinstance(waits_for, int):
                heapq.heappush(scheduled, (waits_for, next(tie_breaker), steps))
            elif waits_for is not None:
                in_flight[waits_for.connection.descriptor] = waits_for, steps
                events = select.POLLIN | (select.POLLOUT if waits_for.is_sending else 0)
                poller.register(waits_for.connection.descriptor, events)

        try:
            while scheduled or in_flight:
                while scheduled and len(in_flight) < depth and scheduled[0][0] <= time.monotonic_ns():
                    _, _, steps = heapq.heappop(scheduled)
                    advance(steps)
                if not in_flight:
                    if scheduled:
                        time.sleep(max(0, scheduled[0][0] - time.monotonic_ns()) / 1e9)
                    continue
                ready = {descriptor for descriptor, _ in poller.poll(POLL_MS)}
                now_ns = time.monotonic_ns()
                ready |= {number for number, (exchange, _) in in_flight.items() if exchange.deadline_ns <= now_ns}
                for descriptor in ready:
                    poller.unregister(descriptor)
                    _, steps = in_flight.pop(descriptor)
                    advance(steps)
        finally:
            for _, steps in in_flight.values():
                steps.close()

    def _complete(self, request: Request, is_alone: Callable[[], bool]) -> Steps:
        """Attempt a request until a response is usable, and set `request.response`."""
        for attempt in itertools.count(1):
            exchange: Exchange | None = None
            try:
                exchange = yield from self._attempt(request, is_alone)
                self._check(request, exchange)
            except OSError as error:
                retry_at_ns = self._back_off_or_raise(request, attempt, exchange, error)
            else:
                request.response = exchange
                return
            yield retry_at_ns
            self.counts.add("retried")

    def _attempt(self, request: Request, is_alone: Callable[[], bool]) -> Generator[Exchange, None, Exchange]:
        """Send a request; return the complete response, whatever its status. Raises OSError: there is none."""
        connection = self._take_connection()
        counter = request.counter
        check_range = partial(range_problem, request.begin, request.end, request.size_bytes)
        exchange = Exchange(
            connection,
            self._header(request, connection.address.netloc),
            request.body,
            request.target,
            bodiless=request.method == "HEAD",
            header_problem=check_range if counter == "get" else None,
        )
        self.counts.count_request(counter)
        try:
            while not exchange.advance(wait=is_alone()):
                if time.monotonic_ns() >= exchange.deadline_ns:
                    exchange.check_progress()
                yield exchange
        except BaseException:
            self._close(connection)
            raise
        finally:
            self.counts.count_end(exchange.body_bytes)
        if counter == "get":
            now_ns = time.monotonic_ns()
            self.counts.add_latencies(exchange.first_byte_ns - exchange.began_ns, now_ns - exchange.began_ns)
        if exchange.reusable and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            self._close(connection)
        return exchange

    def _take_connection(self) -> Connection:
        """Return an idle connection that is still open, or a new one."""
        with contextlib.suppress(IndexError):  # there is none, or another thread took it
            while not (idle := self._idle.pop()).is_quiet():
                self._close(idle)
            return idle
        address = self._options.addresses[next(self._next_address) % len(self._options.addresses)]
        connection = Connection(address, self._tls, self._options.timeout_seconds)
        self.counts.add("connections_opened")
        self.counts.add("connections_open")
        return connection

    def _close(self, connection: Connection) -> None:
        self.counts.add("connections_open", -1)
        connection.close()

    def _header(self, request: Request, server: str) -> bytes:
        """Return the signed header of a request: the request line and the header lines. `server` is HOST:PORT."""
        path = f"/{quoted_path(request.key)}"
        if self._options.s3_force_path_style or "." in request.bucket:  # no certificate fits a name with dots
            host = server
            path = f"/{request.bucket}{path}" if request.key else f"/{request.bucket}"
        else:
            host = f"{request.bucket}.{server}"
        query = query_text(request.query) if request.query else ""
        lines = self._signer.lines(request.method, host, path, query, request.payload_sha256, request.signed_headers)
        if request.end is not None:
            lines += f"range: bytes={request.begin}-{request.end - 1}\r\n"
        if request.etag:
            lines += f"if-match: {request.etag}\r\n"
        if request.method in ("PUT", "POST"):
            lines += f"content-length: {len(request.body)}\r\n"
        url = f"{path}?{query}" if query else path
        return f"{request.method} {url} HTTP/1.1\r\n{lines}\r\n".encode()

    def _check(self, request: Request, exchange: Exchange) -> None:
        """Raise an error if a complete response reports one or is unusable, unless its status is accepted."""
        if exchange.status in request.accepted:
            return
        # S3 may begin a response with status 200 and report an error in its body
        code = code_in(exchange.body) if request.parse or not exchange.succeeded else ""
        if code or not exchange.succeeded:
            raise OSError(errno.EREMOTEIO, f"{exchange.status} {code}".strip())
        if request.etag and exchange.header("etag") not in ("", request.etag):
            raise self._changed(request)
        if request.method == "HEAD" and number_in(exchange.header("content-length")) is None:
            raise BrokenResponseError("the response has no Content-Length")
        if request.parse:
            request.content = request.parse(exchange.body)

    def _back_off_or_raise(self, request: Request, attempt: int, exchange: Exchange | None, error: OSError) -> int:
        """Count a failed attempt; return when to retry (monotonic, ns). Raises as `request_all` if retries are over."""
        self.counts.add("failed")
        retry_after = 0  # seconds
        if exchange is not None:
            if exchange.status in (503, 429):
                self.counts.add("slow_down")
            if refusal := self._refusal(request, exchange):
                raise refusal
            retry_after = number_in(exchange.header("retry-after")) or 0
        if isinstance(error, ssl.SSLCertVerificationError):
            raise ServerError(
                f"{self.endpoint}: its certificate is not trusted ({error.verify_message}): give the "
                "certificate authority in storage.storage_options.ca_bundle, AWS_CA_BUNDLE or SSL_CERT_FILE (a file of "
                "certificates), or the address that the certificate names"
            ) from error
        if isinstance(error, ssl.SSLError) and error.reason == NO_TLS:
            advice = "wanted its address with http://, or the port that speaks TLS"
            raise ServerError(f"{self.endpoint}: the server does not speak TLS there: {advice}") from error
        if attempt >= self._options.s3_max_attempts:
            error_type = DatasetError if request.counter == "get" else ServerError
            raise error_type(
                f"{self.where(request)} failed {attempt} times, the last time because of: "
                f"{error.strerror or error}. Check whether an S3 server is up there "
                "(storage.storage_options.endpoint_url) and how loaded it is; "
                "storage.storage_options.s3_max_attempts sets how many times to try, timeout_seconds how long to wait"
            ) from error
        backoff = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** (attempt - 1))
        backoff *= random.uniform(0.5, 1.0)  # spreads the retries of many clients
        wait_seconds = max(backoff, min(LONGEST_BACKOFF_SECONDS, retry_after))
        return time.monotonic_ns() + round(1e9 * wait_seconds)

    def _refusal(self, request: Request, exchange: Exchange) -> Exception | None:
        """Return the error for a request that the server refuses for good; None if a retry may succeed."""
        code, status = code_in(exchange.body), exchange.status
        if request.method == "HEAD" and status in UNEXPLAINED_BY_HEAD:
            # If GET is refused, too, this raises with the server's reason; if not (404; 416: empty object), go on
            self.request(Request(method="GET", bucket=request.bucket, key=request.key, end=1, accepted=(404, 416)))
        is_refusal = not exchange.succeeded and (status < 500 or code.endswith(NO_SPACE))
        if not is_refusal or status in RETRYABLE or code in RETRYABLE:
            return None
        if code == "NoSuchBucket" or (status == 404 and not request.key):
            advice = "make it, or set storage.storage_root to one"
            return ServerError(f"there is no bucket {request.bucket!r} at {self.endpoint}: {advice}")
        if status == 404 and code not in ADVICE:
            return no_such_file(f"s3://{request.bucket}/{request.key}")
        if status == 412:
            return self._changed(request)
        _, text = error_in(exchange.body)
        reason = f" ({text[:MESSAGE_CHARACTERS]})" if text else ""
        message = f"{self.where(request)}: {status} {code}{reason}".rstrip()
        if code.endswith(NO_SPACE):
            return SpaceError(f"{message}: the bucket is full: raise its quota, remove objects, or use another")
        advice = ADVICE.get(code) or ADVICE.get(status, "the server refuses the request; wanted an S3 server")
        region = exchange.header("x-amz-bucket-region")
        if region not in ("", self._signer.region):
            advice = f"the bucket is in region {region!r}: {REGION_ADVICE}"
        elif not code and b"HTTPS" in exchange.body[:1000]:  # plain text of Go's servers, HTML of nginx
            advice = "the server speaks TLS there: wanted https:// in storage.storage_options.endpoint_url"
        return ServerError(f"{message}: {advice}")

    def _changed(self, request: Request) -> DatasetError:
        problem = f"the object changed while it was read (its ETag was {request.etag})"
        return DatasetError(f"{self.where(request)}: {problem}: leave the dataset alone during a run, and run again")

    def where(self, request: Request) -> str:
        """Return a request's method, object and server, for messages: without credentials."""
        return f"{request.method} s3://{f'{request.bucket}/{request.key}'.rstrip('/')} at {self.endpoint}"
