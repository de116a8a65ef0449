"""Requests to an S3 server: signed, several in flight from one thread, retried where that helps, counted, timed.

One thread drives all of its requests by poll(2): a worker with many of them needs no threads of its own, its account of
CPU time stays that of one thread, and nothing is left behind by a fork. A request that is alone in flight is waited for
in its read: at small objects each wake-up and each read that finds nothing costs as much as copying what comes.
"""

from __future__ import annotations

import email.utils
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
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from datagen.errors import DatasetError, ServerError
from datagen.storage._http_exchange import BODY_BYTES, Address, BrokenAnswerError, Connection, Exchange, number_in
from datagen.storage._request_counts import TLS_CPU_US, RequestCounts
from datagen.storage._s3_signing import EMPTY_SHA256, WAYS, Signer, query_text, quoted_path
from datagen.storage._s3_xml import LIST_BYTES, WrongXmlError, error_in

CONNECT_SECONDS = 10.0  # Linux repeats a lost SYN after 1, 3 and 7 s
LEAST_BYTES = 64 << 10
"""A connection that moves fewer bytes in the time-out is given up: it hangs, or is held up on purpose."""
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.1, 20.0  # 20 s: as the AWS SDKs' standard mode
RETRYABLE = (408, 429, 500, 502, 503, 504)
"""Answers that may be others when retried."""
RETRYABLE_CODES = (
    *("RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"),
    *("XAmzContentSHA256Mismatch", "BadDigest", "IncompleteBody"),  # what was sent did not arrive as it was
)
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
SKEWED = "RequestTimeTooSkewed"
REFUSED = (400, 401, 403)
"""Answers whose reason is in their body, which that to a HEAD has not."""
NO_TLS = "WRONG_VERSION_NUMBER"
"""What OpenSSL calls an answer that is not TLS."""
MESSAGE_CHARACTERS = 300
"""Most of what a server says of an error that is shown."""
BEYOND = 1 << 62
"""An offset behind the end of any object."""
MOST_IDLE = 64
"""Connections that are kept open between requests."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """Which server, which bucket, and how patient."""

    addresses: tuple[Address, ...]
    bucket: str
    path_style: bool
    attempts: int
    timeout_seconds: float
    endpoint: str
    """As the user gave it, for messages."""


class Span(NamedTuple):
    """Which bytes of an object are requested: from `begin` to `end`, which is not among them."""

    begin: int
    end: int
    size_bytes: int | None = None
    """Of the whole object, where it is known; the end then lies within it."""

    @property
    def stated(self) -> str:
        """What a server says that sends these bytes."""
        return f"bytes {self.begin}-{self.end - 1}/{self.size_bytes}"

    @property
    def header(self) -> tuple[str, str]:
        return "range", f"bytes={self.begin}-{self.end - 1}"


@dataclass(slots=True, kw_only=True)
class Request:
    """One request, with all its attempts."""

    kind: str
    """Which counter it belongs to: get, head, list, put, delete."""
    method: str
    key: str = ""
    """Empty for the bucket itself."""
    query: Sequence[tuple[str, str]] = ()
    headers: Sequence[tuple[str, str]] = ()
    signed_headers: tuple[tuple[str, str], ...] = ()
    """Those that begin with x-amz-, by their names in order."""
    body: Sequence[memoryview] = ()
    payload_sha256: str = EMPTY_SHA256
    span: Span | None = None
    """Of a GET for some of an object's bytes: with a success of any others it is retried."""
    target: memoryview | None = None
    """Where the body of a success goes, which must fill it."""
    read: Callable[[bytes], Any] | None = None
    """Makes `content` of the body of a success, or raises WrongXmlError."""
    content: Any = None
    attempts: int = 0
    fine: tuple[int, ...] = ()
    """Answers besides a success that the caller handles."""
    answer: Exchange | None = None
    retry_seconds: float = 0.0
    """After how long to retry, where that brought no answer."""
    renewed: bool = False


@dataclass(slots=True)
class Active:
    """A request that was sent."""

    request: Request
    exchange: Exchange
    until_ns: int
    seen_bytes: int = 0
    collected: bool = False
    """Of what is collected, some had come when its time was over before."""


class Client:
    """Talks to one bucket. Threads share it, each with requests of its own under way."""

    def __init__(self, server: Server, signer: Signer, tls: ssl.SSLContext | None, counts: RequestCounts) -> None:
        self.server = server
        self.counts = counts
        self._signer = signer
        self._tls = tls
        self._idle: deque[Connection] = deque()
        self._before_key = f"/{server.bucket}/" if server.path_style else "/"
        self._patience_ns = round(1e9 * server.timeout_seconds)
        self._turn = itertools.count(os.getpid())

    def request(self, request: Request) -> Exchange:
        """Return the answer of a request. Raises as `request_all`."""
        self.request_all([request])
        assert request.answer is not None
        return request.answer

    def request_all(self, requests: Iterable[Request], depth: int = 1, begun: Iterable[Active] = ()) -> None:
        """Bring all answers, `depth` requests in flight at most; those that have `begun` among them.

        The next of `requests` is taken when fewer than `depth` are in flight, so it may be an endless iterator.

        Raises:
            FileNotFoundError: there is no such object.
            ServerError: keys, bucket, region or endpoint are wrong (and DatasetError: it failed again and again).
        """
        waiting = iter(requests)
        following = next(waiting, None)
        delayed: list[tuple[float, int, Request]] = []
        active: dict[int, Active] = {}
        order = itertools.count()
        poller = select.poll()

        def retry(request: Request) -> None:
            heapq.heappush(delayed, (time.monotonic() + request.retry_seconds, next(order), request))

        def go_on(each: Active) -> None:
            alone = not active and not delayed and (depth == 1 or following is None)
            if not self._progress(each, wait=alone):
                number = each.exchange.connection.number
                active[number] = each
                poller.register(number, _events(each))
            elif each.request.answer is None:
                retry(each.request)

        try:
            for each in begun:
                each.until_ns = time.monotonic_ns() + self._patience_ns
                go_on(each)
            while following is not None or delayed or active:
                while len(active) < depth:
                    if delayed and delayed[0][0] <= time.monotonic():
                        request = heapq.heappop(delayed)[2]
                    elif following is not None:
                        request, following = following, next(waiting, None)
                    else:
                        break
                    try:
                        started = self.send(request)
                    except OSError as error:
                        self._failed(request, None, error)
                        retry(request)
                        continue
                    go_on(started)
                ready = poller.poll(self._patience_ms(active, delayed)) if active else []
                if not active and delayed:
                    time.sleep(max(0.0, delayed[0][0] - time.monotonic()))
                for number, _ in ready:
                    each = active.pop(number)  # what is over is nobody's to hang up, also when it raises
                    poller.unregister(number)
                    go_on(each)
                for number in self._late(active):
                    late = active.pop(number)
                    poller.unregister(number)
                    self._give_up(late)
                    text = f"no more than {LEAST_BYTES >> 10} KiB arrived in {self.server.timeout_seconds:g} s"
                    if late.collected:
                        text = f"the response, which should be short, did not end in {self.server.timeout_seconds:g} s"
                    self._failed(late.request, None, TimeoutError(errno.ETIMEDOUT, text))
                    retry(late.request)
        finally:
            for each in active.values():
                self._give_up(each)

    def send(self, request: Request) -> Active:
        """Send a request, or its beginning, without waiting for the answer. Raises OSError."""
        request.attempts += 1
        if request.attempts > 1:
            self.counts.add("retried")
        connection = self._connection()
        self.counts.sent(request.kind)
        exchange = Exchange(
            connection,
            self._head(request, connection.address),
            request.body,
            request.target,
            bodiless=request.method == "HEAD",
            most_bytes=LIST_BYTES if request.kind == "list" else BODY_BYTES,
            what_is_wrong=partial(_wrong_part, request) if request.method == "GET" and request.key else None,
        )
        return Active(request, exchange, exchange.began_ns + self._patience_ns)

    def send_ahead(self, request: Request) -> Active | None:
        """Send a request whose answer is wanted later; None where that failed: it is retried then."""
        try:
            begun = self.send(request)
        except OSError:
            return None
        try:
            begun.exchange.advance(to_head=True)
        except OSError:
            self._give_up(begun)
            return None
        return begun

    def head_of(self, begun: Active) -> Active:
        """Wait for the head of an answer whose request was sent; the request that brought it, retried if need be.

        Raises as `request_all`.
        """
        while True:
            try:
                self._wait_for_head(begun)
                if begun.exchange.succeeded:
                    return begun
                self._read_error(begun)
            except OSError as error:
                if isinstance(error, FileNotFoundError):
                    raise
                self._give_up(begun)
                self._failed(begun.request, None, error)
            time.sleep(begun.request.retry_seconds)
            begun = self.begin(begun.request)

    def finish(self, begun: Active) -> None:
        """Bring the rest of an answer that is alone in flight. Raises as `request_all`."""
        request = begun.request
        if not self._progress(begun, wait=True):
            self.request_all((), begun=(begun,))
        elif request.answer is None:
            time.sleep(request.retry_seconds)
            self.request_all((request,))

    def drop(self, begun: Active) -> None:
        """Leave an answer that nobody wants any more."""
        if begun.request.answer is None:
            self._give_up(begun)

    def begin(self, request: Request) -> Active:
        """Send a request as often as that fails, and do not wait for the answer. Raises as `request_all`."""
        while True:
            try:
                return self.send(request)
            except OSError as error:
                self._failed(request, None, error)
                time.sleep(request.retry_seconds)

    def _wait_for_head(self, begun: Active) -> None:
        exchange, until = begun.exchange, time.monotonic() + self.server.timeout_seconds
        while not exchange.advance(to_head=True, wait=True):
            left = until - time.monotonic()
            if left <= 0 or not exchange.connection.wait_for(_events(begun), left):
                text = f"no response arrived within {self.server.timeout_seconds:g} s"
                raise TimeoutError(errno.ETIMEDOUT, text)

    def _read_error(self, begun: Active) -> None:
        """Read the rest of an error, and say in its request when to retry. Raises as `request_all`."""
        until = time.monotonic() + self.server.timeout_seconds
        while not self._progress(begun, wait=True):
            left = until - time.monotonic()
            if left <= 0 or not begun.exchange.connection.wait_for(select.POLLIN, left):
                raise TimeoutError(errno.ETIMEDOUT, f"an error body did not end in {self.server.timeout_seconds:g} s")

    def _progress(self, each: Active, *, wait: bool) -> bool:
        """Go on with an answer; return whether nothing more will come over its connection.

        Where that leaves the request without an answer, it is to be retried.
        """
        try:
            if not each.exchange.advance(wait=wait):
                return False
        except OSError as error:
            self._give_up(each)
            self._failed(each.request, None, error)
            return True
        exchange, request = each.exchange, each.request
        self._finished(request, exchange)
        wrong = self._what_is_wrong(request, exchange)
        if wrong is None:
            request.answer = exchange
        else:
            self._failed(request, exchange, wrong)
        return True

    def _what_is_wrong(self, request: Request, exchange: Exchange) -> OSError | None:
        """Return what is wrong with a whole answer; None where it is right."""
        if not exchange.succeeded:
            if exchange.status in request.fine:
                return None
            return OSError(errno.EREMOTEIO, f"{exchange.status} {_code(exchange)}".strip())
        if request.target is not None and exchange.got != len(request.target):
            text = f"the response has {exchange.got} bytes of {len(request.target)}"
            return BrokenAnswerError(errno.ECONNRESET, text)
        if request.method == "HEAD" and request.key and number_in(exchange.header("content-length")) is None:
            return BrokenAnswerError(errno.EPROTO, "the response has no Content-Length")
        if request.read is None:
            return None
        if code := _code(exchange):  # a success that turned out to be none while it was sent
            return OSError(errno.EREMOTEIO, f"{exchange.status} {code}")
        try:
            request.content = request.read(exchange.body)
        except WrongXmlError as error:
            return BrokenAnswerError(errno.EPROTO, f"the response {error}")
        return None

    def _failed(self, request: Request, exchange: Exchange | None, error: OSError) -> None:
        """Say in the request after how many seconds to retry; raises what it is where that is of no use."""
        request.retry_seconds = 0.0
        self.counts.add("failed")
        code = _code(exchange) if exchange is not None else ""
        status = exchange.status if exchange is not None else 0
        if status in (503, 429):
            self.counts.add("slow_down")
        if exchange is not None and not request.renewed:
            if request.method == "HEAD" and status in REFUSED:
                self._request_reason(request)
                request.renewed = True
                return
            if code == SKEWED and self._learn_clock(exchange):
                request.renewed = True
                return
            signed_before = exchange.began_ns < self._signer.renewed_ns  # another request in flight met it first
            if code in EXPIRED and (signed_before or self._signer.renew()):
                request.renewed = True
                return
        final = exchange is not None and status < 500 and status not in RETRYABLE and code not in RETRYABLE_CODES
        if final and exchange is not None and not exchange.succeeded:
            raise self._explained(request, exchange, code)
        if isinstance(error, ssl.SSLCertVerificationError):
            raise ServerError(
                f"{self.server.endpoint}: its certificate is not trusted ({error.verify_message}): give the "
                "certificate authority in storage.storage_options.ca_bundle, AWS_CA_BUNDLE or SSL_CERT_FILE (a file of "
                "certificates), or the address that the certificate names"
            ) from error
        if isinstance(error, ssl.SSLError) and error.reason == NO_TLS:
            raise ServerError(
                f"{self.server.endpoint}: the server does not speak TLS there: wanted its address with http://, or the "
                "port that speaks TLS"
            ) from error
        if request.attempts >= self.server.attempts:
            raise self._gave_up(request, error) from error
        backoff = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** (request.attempts - 1))
        asked = number_in(exchange.header("retry-after")) if exchange is not None else None
        least = min(LONGEST_BACKOFF_SECONDS, float(asked or 0))
        request.retry_seconds = max(least, backoff * random.uniform(0.5, 1.0))  # clients refused together return apart

    def _request_reason(self, request: Request) -> None:
        """Ask for a byte of an object whose HEAD was refused, for that answer says why; raises what it says.

        A clock that is corrected by it, or keys that are renewed, let the HEAD succeed afterwards.
        """
        span = Span(0, 1)
        fine = (404, 416)  # it is not there, or empty, and the request was one of somebody who may know that
        self.request(Request(kind="get", method="GET", key=request.key, headers=(span.header,), span=span, fine=fine))

    def _gave_up(self, request: Request, error: OSError) -> Exception:
        what = f"{self.where(request)} failed {request.attempts} times, the last time because of: {_reason(error)}"
        if request.key and request.kind == "get":
            return DatasetError(
                f"{what}. Check whether the server is up and how loaded it is; "
                "storage.storage_options.s3_max_attempts sets how many times to try, timeout_seconds how long to wait"
            )
        return ServerError(
            f"{what}. Wanted an S3 server at {self.server.endpoint}: check that it is running, and that "
            "storage.storage_options.endpoint_url is its address"
        )

    def _explained(self, request: Request, exchange: Exchange, code: str) -> Exception:
        status, where = exchange.status, self.where(request)
        text = error_in(exchange.body).message[:MESSAGE_CHARACTERS]
        message = f"{where}: {status} {code}{f' ({text})' if text else ''}".rstrip()
        bucket = self.server.bucket
        if code == "NoSuchBucket" or (status == 404 and not request.key):
            return ServerError(
                f"there is no bucket {bucket!r} at {self.server.endpoint}: make it, or set storage.storage_root to one"
            )
        if code == "NoSuchUpload":
            return ServerError(
                f"{message}: another program or a lifecycle rule of the bucket aborted the upload: run the command "
                "again"
            )
        if status == 404:
            return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"s3://{bucket}/{request.key}")
        if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity"):
            return ServerError(f"{message}: the server does not accept these credentials. They come from: {WAYS}")
        if code in EXPIRED or code == "InvalidToken":
            return ServerError(f"{message}: the credentials have expired and can't be renewed. They come from: {WAYS}")
        if code == SKEWED:
            return ServerError(f"{message}: the clocks of this host and of the server differ too much: set them (ntp)")
        region = exchange.header("x-amz-bucket-region")
        if region or code in ("AuthorizationHeaderMalformed", "PermanentRedirect") or status in (301, 307):
            named = f" {region!r}" if region and region != self._signer.region else ""
            return ServerError(
                f"{message}: the bucket is in another region{named} than {self._signer.region!r}: set "
                "storage.storage_options.region, or AWS_REGION"
            )
        if status == 400 and b"HTTPS" in exchange.body[:1000]:  # plain text of Go's servers, HTML of nginx
            return ServerError(
                f"{self.server.endpoint}: the server speaks TLS there: wanted its address with https:// in "
                "storage.storage_options.endpoint_url"
            )
        if status == 403:
            return ServerError(
                f"{message}: these credentials are not allowed to do that: let them list, read and write bucket "
                f"{bucket!r}, or use others"
            )
        if status == 412:
            return DatasetError(
                f"{where}: the object was changed while it was read (its ETag differs): leave the dataset alone "
                "during a run, and run again"
            )
        return ServerError(f"{message}: the server refuses the request; wanted an S3 server at {self.server.endpoint}")

    def where(self, request: Request) -> str:
        """Return what a request is, for messages: no credentials are in it."""
        key = f"/{request.key}" if request.key else ""
        return f"{request.method} s3://{self.server.bucket}{key} at {self.server.endpoint}"

    def _learn_clock(self, exchange: Exchange) -> bool:
        """Take over the server's clock; say whether it differs."""
        try:
            there = email.utils.parsedate_to_datetime(exchange.header("date")).timestamp()
        except (TypeError, ValueError, OverflowError, OSError):  # also of years that mktime does not know
            return False
        offset = there - time.time()
        differs = abs(offset - self._signer.clock_offset_seconds) > 1
        self._signer.clock_offset_seconds = offset
        return differs

    def _head(self, request: Request, address: Address) -> bytes:
        server = self.server
        path = self._before_key + quoted_path(request.key) if request.key else self._before_key.rstrip("/") or "/"
        host = address.authority if server.path_style else f"{server.bucket}.{address.authority}"
        query = query_text(request.query) if request.query else ""
        signed = self._signer.lines(request.method, host, path, query, request.payload_sha256, request.signed_headers)
        others = "".join([f"{name}: {value}\r\n" for name, value in request.headers])
        if request.method in ("PUT", "POST"):
            others += f"content-length: {sum(len(part) for part in request.body)}\r\n"
        asked = f"{path}?{query}" if query else path
        return f"{request.method} {asked} HTTP/1.1\r\n{signed}{others}\r\n".encode()

    def _connection(self) -> Connection:
        """Return an open connection: one that is idle and was not closed by the server, or a new one."""
        while self._idle:
            try:
                idle = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if idle.is_quiet():
                return idle
            self._hang_up(idle)
        address = self.server.addresses[next(self._turn) % len(self.server.addresses)]
        patience = self.server.timeout_seconds
        made = Connection(address, self._tls if address.is_tls else None, min(CONNECT_SECONDS, patience), patience)
        self.counts.add("connections_opened")
        self.counts.add("connections_open")
        self._count_tls(made)
        return made

    def _count_tls(self, connection: Connection) -> None:
        if connection.tls_cpu_ns:
            spent_us, connection.tls_cpu_ns = connection.tls_cpu_ns // 1000, 0
            self.counts.add(TLS_CPU_US, spent_us)

    def _finished(self, request: Request, exchange: Exchange) -> None:
        self.counts.ended(exchange.got)
        if request.kind == "get":
            began_ns = exchange.began_ns
            self.counts.answered(exchange.first_byte_ns - began_ns, time.monotonic_ns() - began_ns)
        self._count_tls(exchange.connection)
        if exchange.reusable and len(self._idle) < MOST_IDLE:
            self._idle.append(exchange.connection)
        else:
            self._hang_up(exchange.connection)

    def _give_up(self, each: Active) -> None:
        self.counts.ended(each.exchange.got)
        self._count_tls(each.exchange.connection)
        self._hang_up(each.exchange.connection)

    def _hang_up(self, connection: Connection) -> None:
        self.counts.add("connections_open", -1)
        connection.close()

    def _late(self, active: dict[int, Active]) -> list[int]:
        """Return those that moved too little in their time, and give the others their next."""
        now = time.monotonic_ns()
        late = []
        for number, each in active.items():
            if now < each.until_ns:
                continue
            moved = each.exchange.progress_bytes - each.seen_bytes
            if moved < LEAST_BYTES or each.collected:
                late.append(number)
            each.collected = each.exchange.collects
            each.seen_bytes += moved
            each.until_ns = now + self._patience_ns
        return late

    def _patience_ms(self, active: dict[int, Active], delayed: list[tuple[float, int, Request]]) -> float:
        now = time.monotonic_ns()
        seconds = [(each.until_ns - now) / 1e9 for each in active.values()]
        if delayed:
            seconds.append(delayed[0][0] - now / 1e9)
        return max(0.0, 1000 * min(seconds)) + 1


def _events(each: Active) -> int:
    return select.POLLIN | (select.POLLOUT if each.exchange.wants_to_send else 0)


def _code(exchange: Exchange) -> str:
    """Return the code of an error that S3 reports in XML."""
    return error_in(exchange.body).code if b"<Error" in exchange.body[:1000] else ""


def _wrong_part(request: Request, exchange: Exchange) -> str:
    """Return why a successful answer does not bring the bytes that were requested; '' where it does."""
    span, length, stated = request.span, exchange.length, exchange.header("content-range")
    if span is not None and length == span.end - span.begin and stated == span.stated:
        return ""  # as nearly all are: no more is looked at
    if exchange.status == 204:
        return "the response has no object"
    if stated or exchange.status == 206:  # rclone sends a range with status 200
        return _wrong_range(span, stated, length)
    if span is not None and (span.begin or span.size_bytes is not None or length is None or length > span.end):
        return f"all of the object arrived where {span.header[1]} was requested: the server does not support ranges"
    return _wrong_length(length, None if request.target is None else len(request.target))


def _wrong_range(asked: Span | None, stated: str, length: int | None) -> str:
    match, span = _content_range(stated), asked or Span(0, BEYOND)
    if match is not None:
        begin, last = int(match[1]), int(match[2])
        size_bytes = span.size_bytes if match[3] is None else int(match[3])
        end = last + 1 if size_bytes is None else min(span.end, size_bytes)
        if (begin, last + 1) == (span.begin, end) and span.size_bytes in (None, size_bytes):
            return _wrong_length(length, end - begin)
    of = "" if span.size_bytes is None else f" of {span.size_bytes}"
    wanted = "all of the object" if asked is None else f"{span.header[1]}{of}"
    return f"{stated[:60]!r} arrived where {wanted} was requested"


def _wrong_length(length: int | None, wanted: int | None) -> str:
    return f"the response has {length} bytes of {wanted}" if None not in (length, wanted) and length != wanted else ""


_content_range = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/(?:([0-9]{1,18})|\*)", re.IGNORECASE).fullmatch


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
